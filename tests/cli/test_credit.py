import json

from typer.testing import CliRunner

from atoll.cli.options import app
from atoll.errors import ConfigError
from atoll.evaluate import lost
from atoll.runs import CREDIT
from tests.credit.test_signature import pem
from tests.evaluate.test_credit import QUICK

SETTINGS = [word for setting in QUICK for word in ("--set", setting)]


def test_a_run_is_valued_and_paid(finished, tmp_path):
    key = pem(tmp_path / "key.pem")
    done = CliRunner().invoke(app, ["credit", str(finished.path), "--key", str(key), "--json", *SETTINGS])
    assert done.exception is None
    answer = json.loads(done.stdout)
    assert len(answer["parts"]) == 3
    assert (finished.path / CREDIT).is_file()
    assert answer["page"].endswith("credit.html")
    assert (
        json.loads((finished.path / "credit" / "epoch-00000.json").read_text())["document"]["pool"] == 100.0
    )


def test_a_picture_is_traced_for_a_person(finished, tmp_path):
    from PIL import Image

    Image.new("L", (28, 28), 40).save(tmp_path / "bare.png")
    done = CliRunner().invoke(
        app, ["credit", str(finished.path), "--picture", str(tmp_path / "bare.png"), *SETTINGS]
    )
    assert done.exception is None
    assert "not whose work is in it" in done.stdout
    assert done.stdout.rstrip().endswith("credit/bare.html")
    assert not (finished.path / CREDIT).is_file(), "nothing was valued"


def test_by_distance_parts_draw_alone_and_nobody_is_paid(finished, tmp_path, monkeypatch):
    monkeypatch.setattr(lost, "GROUPS", 2)
    settings = ["credit.drawn=16", "sample.steps=1", "evaluate.features=['pixels']", "evaluate.reference=100"]
    words = [word for setting in settings for word in ("--set", setting)]
    done = CliRunner().invoke(app, ["credit", str(finished.path), "--by", "distance", "--json", *words])
    assert done.exception is None
    answer = json.loads(done.stdout)
    assert [part["number"] for part in answer["spaces"]["pixels"]["parts"]] == [0, 1, 2]
    assert answer["page"].endswith("distance.html") and not (finished.path / CREDIT).is_file()
    key = pem(tmp_path / "key.pem")
    refused = CliRunner().invoke(app, ["credit", str(finished.path), "--by", "distance", "--key", str(key)])
    assert isinstance(refused.exception, ConfigError) and "pays nobody" in str(refused.exception)
