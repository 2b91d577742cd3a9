import pytest
from paper_toys import measured, record

from fedavg.campaign.records import RecordError, Records
from fedavg.paper import figure1
from fedavg.paper.cells import CELLS
from fedavg.paper.choose import choose
from fedavg.paper.figures import CHARTS, draw, line_needs, lines, missing, new_figure, sample_loss, with_rates

(CELL,) = choose([c for c in CELLS if c.table == 4], ["partition=iid,E=1,B=10"])
(CNN,) = choose([c for c in CELLS if c.table == 2], ["model=cnn,partition=iid,E=1,B=10"])


@pytest.fixture
def store(tmp_path):
    return Records(tmp_path / "records")


def test_all_figures_are_there():
    assert list(CHARTS) == [2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert len(list(lines(CHARTS[2]))) == 30, "every (E, B) of Table 2"
    assert len(list(lines(CHARTS[7]))) == 36, "every (E, B) of Table 4, with centred pixels and with pixels in [0, 1]"
    assert [line.label for line in CHARTS[9].panels[0].lines][0:2] == ["SGD", "C=0 E=1"]
    assert [line.per_round for line in CHARTS[9].panels[0].lines] == [1, 10, 50, 100, 500, 1000, 5000]


@pytest.mark.parametrize("number", CHARTS)
def test_a_figure_without_records_is_not_drawn_and_says_so(store, tmp_path, number):
    drawn = draw(CHARTS[number], store, tmp_path)
    assert drawn.files == ()
    assert len(drawn.missing) == len(list(lines(CHARTS[number])))


def test_only_what_has_records_is_drawn(store, tmp_path):
    for made in measured(CELL):
        store.put(made)
    drawn = draw(CHARTS[7], store, tmp_path / "figures")
    assert [f.name for f in drawn.files] == ["figure7.png", "figure7.svg"]
    assert drawn.files[0].stat().st_size > 5000
    assert len(drawn.missing) == 35
    assert "MNIST 2NN, IID: B=10 E=1" not in drawn.missing
    svg = drawn.files[1].read_bytes()
    assert draw(CHARTS[7], store, tmp_path / "figures").files[1].read_bytes() == svg, "the same records, the same file"


@pytest.mark.parametrize("number", CHARTS)
def test_no_title_is_cut_off(number):
    chart = CHARTS[number]
    figure = new_figure(f"Figure {chart.number}. {chart.title}", len(chart.panels))
    figure.draw_without_rendering()
    (title,) = figure.texts
    box = title.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width


def test_training_loss_is_that_of_the_shared_model(store, tmp_path):
    store.put(record(CNN, 0.1, [0.9]))
    assert "MNIST CNN, IID: B=10 E=1" in missing(CHARTS[6], store), "without a sample there is nothing to draw"
    store.put(record(CNN, 0.1, [0.9, 0.95], sample_rounds=(1, 2), sample_loss=(0.5, 0.1)))
    store.put(record(CNN, 0.215, [0.9, 0.95], sample_rounds=(1, 2), sample_loss=(0.5, 0.2)))
    assert sample_loss(store.of(CNN.setting.key)) == ([1, 2], [0.5, 0.1])
    assert len(draw(CHARTS[6], store, tmp_path).missing) == 17
    assert len(draw(CHARTS[8], store, tmp_path).missing) == 13, "the line E=1 of Figure 8 is at 0.1"


def test_what_a_line_needs(store):
    _, line = next(lines(CHARTS[8]))
    (need,) = line_needs(line, 50, store)
    assert (need.plan.lr, need.cap, need.target, need.train_sample) == (0.1, 50, None, 10_000)
    store.put(record(CNN, 0.1, [0.9] * 50))
    assert line_needs(line, 50, store) == []
    assert [n.plan.lr for n in line_needs(next(lines(with_rates(CHARTS[8], [0.2])))[1], 50, store)] == [0.2]


def test_a_line_of_a_table_goes_on_at_the_best_rate(store):
    line = next(line for _, line in lines(CHARTS[7]) if line.cell == CELL)
    assert line_needs(line, 0, store) == []
    assert line_needs(line, 500, store) == [], "the search comes first"
    for made in measured(CELL):
        store.put(made)
    assert [(n.plan.lr, n.cap) for n in line_needs(line, 500, store)] == [(0.215, 500)]


def test_figure_1(tmp_path):
    mixtures = figure1.compute(points=3)
    assert mixtures.theta == (-0.2, 0.5, 1.2)
    assert mixtures.shared[1] < min(mixtures.shared[0], mixtures.shared[2])
    assert mixtures.shared[1] < mixtures.different[1], "a shared start makes averaging work"
    figure1.save(mixtures, tmp_path)
    assert figure1.read(tmp_path) == mixtures
    assert [f.name for f in figure1.draw(mixtures, tmp_path)] == ["figure1.png", "figure1.svg"]


def test_a_broken_record_of_figure_1(tmp_path):
    assert figure1.read(tmp_path) is None
    (tmp_path / "figure1.json").write_text("{}")
    with pytest.raises(RecordError, match="is not a record of Figure 1"):
        figure1.read(tmp_path)
