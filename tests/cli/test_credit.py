import json

from typer.testing import CliRunner

from atoll.cli.options import app
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
