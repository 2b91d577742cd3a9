from fedavg.page import views
from fedavg.page.answers import Shown
from fedavg.page.library import Library
from fedavg.page.partitions import Partitions
from fedavg.page.record import RunFiles
from fedavg.runlog.rundir import RunDir
from page.runs import finished, named, private, world


def record(run: RunDir) -> RunFiles:
    found = RunFiles(run.path, run.path.name)
    found.refresh()
    return found


def test_who_took_part_is_counted_over_all_rounds(tmp_path):
    answer = views.clients(record(named(tmp_path / "run")))
    assert answer["participation"] == {"distinct": 2, "client": [3, 5], "reported": [4, 4]}
    assert answer["worst"]["accuracy"]["client"] == [5]
    assert answer["spread"]["accuracy"]["p90"] == {"x": [1, 2, 3, 4], "y": [0.9] * 4}


def test_a_private_run_has_no_names(tmp_path):
    found = record(private(tmp_path / "run"))
    assert views.clients(found)["private"]
    assert views.clients(found)["participation"] is None
    answer = views.one_round(found, 4)
    assert answer["private"]
    assert answer["budget"] == 8.0


def test_a_run_without_such_records_says_so(tmp_path):
    answer = views.clients(record(finished(tmp_path / "run")))
    assert answer["metrics"] == []
    assert answer["participation"] is None


def test_the_days_of_a_world(tmp_path):
    found = record(world(tmp_path / "run"))
    first, second = views.world(found, "0"), views.world(found, "1")
    assert (first["days"], first["rounds"], second["rounds"]) == (2, [1, 2, 3, 4], [5, 6])
    assert second["values"]["there"] == [24, 25]
    assert second["values"]["groups.1.0"] == [12, 13]
    assert first["totals"] == {"spent_s": 54, "wasted_s": 6, "waited_s": 6 * 3600}
    assert views.world(found, "99")["day"] == 1
    assert views.world(found, "-1; x")["day"] == 0
    assert views.world(record(finished(tmp_path / "other")), "0") is None


def test_some_items_evenly():
    assert views.evenly(range(5), 9) == [0, 1, 2, 3, 4]
    assert views.evenly(range(101), 5) == [0, 25, 50, 75, 100]


PLAN = {"data": "mnist", "partition": "iid", "clients": 100, "seed": 0, "holdout": 0.0, "stages": [], "secagg": "none"}


def missing(plan, fingerprint=None):
    return Partitions().of(plan, {"data": fingerprint} if fingerprint else {}).get("missing", "")


def test_the_partition_of_a_plan_is_described():
    answer = Partitions().of(PLAN, {})
    assert (answer["clients"], answer["shown"][:3]) == (100, [0, 1, 2])
    assert sum(sum(counts) for counts in answer["counts"]) == answer["train_examples"]
    assert answer["labels"] == list(range(10))


def test_what_is_known_of_an_open_plan_is_not_told_of_a_private_one():
    partitions = Partitions()
    assert partitions.of(PLAN, {})["clients"] == 100
    assert "missing" in partitions.of(PLAN | {"stages": ["clip:1", "noise:1"]}, {})


def test_a_private_plans_clients_are_not_described():
    assert "keeps single clients from view" in missing(PLAN | {"stages": ["clip:1", "noise:1"]})
    assert "keeps single clients from view" in missing(PLAN | {"stages": ["mine:Stage"]})
    assert "keeps single clients from view" in missing(PLAN | {"secagg": "complete:8:100"})


def test_no_code_that_a_plan_names_is_run(tmp_path, monkeypatch):
    (tmp_path / "trap.py").write_text("raise SystemExit('the trap was sprung')\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert "no code" in missing(PLAN | {"data": "trap:Data"})
    assert "no code" in missing(PLAN | {"partition": "trap:Partition"})


def test_other_data_than_the_runs_is_not_shown(tmp_path):
    assert "not what the run was started on" in missing(PLAN, "another")
    assert "fedavg data get" in missing(PLAN | {"data": "cifar10", "data_dir": str(tmp_path)})


def test_a_plan_of_another_tool_is_told():
    assert "can read" in missing({"data": "mnist", "stages": 7})
    assert "can read" in missing({"data": "mnist"})


def test_the_answers_by_their_paths(tmp_path):
    run = world(tmp_path / "run")
    library = Library(run.path)
    library.read_all()
    shown = Shown(library)
    (listed,) = shown.answer("index")["runs"]
    assert shown.answer(f"run/{listed['id']}/world?day=1")["day"] == 1
    assert shown.answer(f"run/{listed['id']}/clients")["metrics"] == []
