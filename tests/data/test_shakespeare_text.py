from fedavg.data.shakespeare_text import read_roles

# Plays are told from poems by having a hundred speeches, so the plays here repeat one scene.
SCENES = 60

LICENCE = "<<THIS ELECTRONIC VERSION IS COPYRIGHT, AND IS PROVIDED\nWITH PERMISSION.  COPIES MAY BE\nDISTRIBUTED.>>\n"

OLD = (
    "The Complete Works\n\n1609\n\nTHE SONNETS\n\nby William Shakespeare\n\n  From fairest creatures. We desire\n"
    + LICENCE
    + "1603\n\nA PLAY\n\nby William Shakespeare\n\nDramatis Personae\n\n  KING, a king\n\n"
    + SCENES * (
        "ACT I. SCENE 1.\nA palace\n\nEnter the KING\n\n"
        "  KING. O proper stuff!  \n    This is the very painting.\n"
        "                   Exit the FOOL\n    Go to.\n\n"
        "  FIRST LORD. Ay.\n" + LICENCE
    )
    + "THE END\n\n1593\n\nTHE COMEDY\n\nby William Shakespeare\n\n"
    + SCENES * "ACT I. SCENE 1\n\nEnter the DUKE\n\nDUKE. Merchant, plead no more;\n  I am not partial.\nLuce. No.\n"
)  # fmt: skip

NEW = (
    "The Complete Works\n\nby William Shakespeare\n\n      Contents\n\n      A POEM\n\n      THE FIRST PLAY\n\n"
    "      THE SECOND PLAY\n\nA POEM\n\nSPOKEN BY NOBODY.\nLine.\n\nTHE FIRST PLAY\n\nby William Shakespeare\n\n"
    + SCENES * "ACT I\n\n  ELY. We are blessed\n   too shallow to count.\n    in the change.\n  KATE. Yes.\n"
    + "\nTHE SECOND PLAY:\n\nThe list of PERSONS.\n\n"
    + SCENES * (
        "ACT I\n\nSCENE I. A street.\n\n Enter Hamlet.\n\nHAMLET.\nWho’s there?\n\n [_Draws his\nsword._]\n\nNay.\n\n"
        "1. LORD.\n  Long live the king!\n\n"
    )
).replace("\n", "\r\n")  # fmt: skip


def test_the_1994_layout() -> None:
    roles = read_roles(OLD)
    assert list(roles) == [("A PLAY", "KING"), ("A PLAY", "FIRST LORD"), ("THE COMEDY", "DUKE"), ("THE COMEDY", "Luce")]
    # An indented stage direction is one more line, without the indent of a speech; trailing blanks go.
    king = ["O proper stuff!", "This is the very painting.", "               Exit the FOOL", "Go to."]
    assert roles["A PLAY", "KING"] == SCENES * king
    assert roles["A PLAY", "FIRST LORD"] == SCENES * ["Ay."]
    assert roles["THE COMEDY", "DUKE"] == SCENES * ["Merchant, plead no more;", "I am not partial."]


def test_the_2018_layout() -> None:
    roles = read_roles(NEW)
    assert roles == {
        ("THE FIRST PLAY", "ELY"): SCENES * ["We are blessed", "in the change."],
        ("THE FIRST PLAY", "KATE"): SCENES * ["Yes."],
        ("THE SECOND PLAY", "HAMLET"): SCENES * ["Who’s there?", "Nay."],
        ("THE SECOND PLAY", "1. LORD"): SCENES * ["Long live the king!"],
    }


def test_other_texts_have_no_roles() -> None:
    assert read_roles("") == {}
    assert read_roles("Once upon a time. There was\nno play.\n") == {}
