import importlib.util
import json
import shutil

import pytest

from atoll.cli.options import app
from atoll.runs.evaluations import read_evaluation
from atoll.train import jobs
from tests import commands

COMMANDS = [
    "add",
    "audit",
    "component",
    "credit",
    "doctor",
    "drop",
    "evaluate",
    "expert",
    "export",
    "forget",
    "grow",
    "host",
    "import",
    "join",
    "partition",
    "plan",
    "prepare",
    "refresh",
    "router",
    "run",
    "sample",
    "serve",
    "shared",
    "show",
    "start",
    "student",
    "study",
    "watch",
]


def atoll(*arguments, check=None):
    """Run the command line in a process of its own, as a person does."""
    done = commands.run(*arguments)
    if check is not None:
        assert done.returncode == check, done.stderr
    return done


def test_the_commands_are_these_and_no_others():
    names = sorted(command.name or command.callback.__name__ for command in app.registered_commands)
    assert names == COMMANDS


def test_every_command_takes_json():
    for command in app.registered_commands:
        assert command.callback is not None
        assert "as_json" in command.callback.__annotations__, command.callback.__name__


def test_show_prints_the_resolved_run_and_nothing_else(tiny):
    done = atoll("show", tiny, "--set", "expert.steps=77", check=0)
    resolved = json.loads(done.stdout)
    assert resolved["expert"]["steps"] == 77
    assert resolved["sample"]["guidance"] == 1.0
    assert not (tiny.parent / "runs").exists()


def test_doctor_speaks_to_people_and_to_machines():
    said = atoll("doctor", check=0).stdout
    assert "torch" in said
    assert "cores" in said
    absent = importlib.util.find_spec("torchvision") is None
    said = json.loads(atoll("doctor", "--json", check=0).stdout)["torchvision"]
    assert said.startswith("absent") == absent


def one_line(done):
    """A user's mistake: exit code 1, one line on standard error, no traceback, nothing on standard output."""
    assert done.returncode == 1, done.stderr
    assert done.stdout == ""
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("atoll: ")
    return lines[0]


def test_misspelt_key(tiny):
    said = one_line(atoll("run", tiny, "--set", "expert.stesp=1"))
    assert "did you mean 'expert.steps'" in said
    assert not (tiny.parent / "runs").exists()


def test_wrong_type(tiny):
    assert "'expert.steps' = 'many'" in one_line(atoll("run", tiny, "--set", "expert.steps=many"))


def test_missing_recipe(tmp_path):
    assert "no such recipe" in one_line(atoll("run", tmp_path / "none.toml"))


def test_missing_data(tiny):
    said = one_line(atoll("run", tiny, "--set", "data.source=nowhere.npz"))
    assert "nowhere.npz" in said
    assert not (tiny.parent / "runs").exists() or not any((tiny.parent / "runs").iterdir())


def test_what_happened_to_a_run_outlives_a_mistake(prepared, tiny):
    run = prepared()
    run.event("finished")
    one_line(atoll("run", tiny, "--set", "data.source=nowhere.npz"))
    assert "finished" in (run.path / "events.jsonl").read_text()


def test_empty_folder(tiny, tmp_path):
    (tmp_path / "empty").mkdir()
    assert "empty" in one_line(atoll("prepare", tiny, "--set", f"data.source={tmp_path / 'empty'}"))


def test_more_clusters_than_samples(tiny):
    said = one_line(atoll("run", tiny, "--set", "partition.clusters=6000", "--set", "partition.fine=6000"))
    assert "6000" in said.replace(",", "")


def test_debug_shows_where(tiny):
    done = atoll("--debug", "run", tiny, "--set", "expert.stesp=1")
    assert done.returncode == 1
    assert "Traceback" in done.stderr


def test_a_run_folder_of_another_recipe(prepared, tiny):
    run = prepared()
    jobs.expert(run, 0)
    said = one_line(atoll("expert", "0", tiny, "--set", "expert.lr=0.5"))
    assert "other settings" in said
    assert "--start-over" in said


def test_a_damaged_checkpoint(prepared, tiny):
    run = prepared("partition.clusters=3")
    for k in range(3):
        jobs.expert(run, k)
    path = run.expert(1).path / "weights.safetensors"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    said = one_line(atoll("sample", run.path))
    assert "experts/01/weights.safetensors is damaged" in said
    assert not (run.path / "samples").exists()


def test_a_damaged_parquet_file(prepared, tiny):
    run = prepared()
    source = (run.path / "partition").resolve()
    (run.path / "partition").unlink()
    shutil.copytree(source, run.path / "partition")
    path = next(run.cluster(0).path.glob("*.parquet"))
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)
    assert path.name in one_line(atoll("expert", "0", tiny))
    assert not (run.expert(0).path / "weights.safetensors").exists()


def test_an_unfinished_run_cannot_be_sampled(prepared):
    run = prepared()
    assert "not trained yet" in one_line(atoll("sample", run.path))


def test_a_folder_that_is_not_a_run(tmp_path):
    assert "is not a run" in one_line(atoll("sample", tmp_path))


NO_ROOM = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
sys.argv = ["atoll", *sys.argv[1:]]
from atoll.cli import main
main()
"""


def test_no_space_left(prepared, tiny, tmp_path):
    """No file may grow beyond 20 kB: the state of training does not fit, as on a full disk."""
    run = prepared()
    (tmp_path / "no_room.py").write_text(NO_ROOM)
    said = one_line(commands.python(tmp_path / "no_room.py", "expert", "0", tiny))
    assert "cannot save" in said
    assert "make room" in said
    left = [path.name for path in run.expert(0).path.rglob("*") if path.is_file()]
    assert not [name for name in left if "partial" in name or name.endswith(".safetensors")]
    assert not run.expert(0).done


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--strategy", "best"], "unknown strategy 'best'"),
        (["--steps", "0"], "'steps' = 0"),
        (["--guidance", "0.5"], "'guidance' = 0.5"),
        (["--label", "1"], "not class-conditional"),
        (["--prompt", "red apple"], "trained without captions"),
        (["--num", "0"], "'num' = 0"),
    ],
)
def test_wrong_sampling_options(finished, arguments, said):
    assert said in one_line(atoll("sample", finished.path, *arguments))
    assert not (finished.path / "samples").exists()


def test_an_output_that_cannot_be_written(finished, tmp_path):
    (tmp_path / "file").write_text("in the way")
    assert "--out" in one_line(atoll("sample", finished.path, "--out", tmp_path / "file" / "x"))


def test_sample_writes_where_it_says(finished, tmp_path):
    done = atoll("sample", finished.path, "--num", "5", "--out", tmp_path / "o", "--json", check=0)
    answer = json.loads(done.stdout)
    assert len(answer["experts"]) == 5
    assert (tmp_path / "o" / "grid.png").read_bytes().startswith(b"\x89PNG")
    assert answer["grid"] == str(tmp_path / "o" / "grid.png")


def test_a_checkpoint_comes_in_and_samples(tmp_path):
    from safetensors.torch import save_file

    from tests.models.test_convert import HEADS, dit_weights

    save_file(dit_weights(), tmp_path / "dit.safetensors")
    out = tmp_path / "expert"
    found = atoll("import", tmp_path / "dit.safetensors", "--out", out, "--set", f"heads={HEADS}", check=0)
    assert 'prediction = "noise"' in found.stdout
    done = atoll("sample", out, "--num", 2, "--steps", 2, "--label", 3, "--json", check=0)
    assert json.loads(done.stdout)["samples"] == str(out / "samples" / "samples.npy")


def test_a_checkpoint_that_is_not_there(tmp_path):
    said = one_line(atoll("import", tmp_path / "no.safetensors", "--out", tmp_path / "out"))
    assert "no.safetensors" in said
    assert not (tmp_path / "out").exists()


def test_any_setting_of_sampling_can_be_set(finished, tmp_path):
    settings = ["--set", "experts=[0, 2]", "--set", "resident=1", "--set", "solver='heun'", "--num", "12"]
    done = atoll("sample", finished.path, *settings, "--out", tmp_path / "o", "--json", check=0)
    assert set(json.loads(done.stdout)["experts"]) <= {0, 2}
    assert "unknown sampling setting residnt" in one_line(
        atoll("sample", finished.path, "--set", "residnt=1", "--out", tmp_path / "p")
    )


def test_sample_tells_the_strategy_and_why(finished, tmp_path):
    said = atoll("sample", finished.path, "--num", 2, "--steps", 2, "--out", tmp_path / "o", check=0).stdout
    assert said.startswith("Strategy ancestral (auto: ")
    said = atoll(
        *("sample", finished.path, "--num", 2, "--steps", 2, "--strategy", "top-1", "--out", tmp_path / "p"),
        check=0,
    ).stdout
    assert said.splitlines()[0] == "Strategy top-1"
    record = json.loads((tmp_path / "p" / "samples.json").read_text())
    assert record["strategy"] == "top-1"
    assert record["certainty"] is None


def test_student_distils_and_its_samples_are_pictures(taught):
    run = taught(steps=2)
    recipe = run.path / "run.toml"
    said = atoll("student", recipe, "--set", "student.steps=2", "--set", "student.batch=4", "--json", check=1)
    assert "`atoll run RECIPE` all that is missing" in said.stderr  # of the run that the recipe names
    named = f"name='{run.path.name}'"
    done = atoll("student", recipe, "--set", named, "--set", "student.steps=2", "--json", check=0)
    assert json.loads(done.stdout)["steps"] == 2
    drawn = json.loads(atoll("sample", run.path / "student", "--num", 3, "--json", check=0).stdout)
    assert len(drawn["experts"]) == 3
    assert (run.path / "student" / "samples" / "grid.png").is_file()


def test_evaluate_measures_and_tells(finished):
    small = ["evaluate.num=12", "evaluate.reference=64", "evaluate.bootstrap=2", "evaluate.routing=8"]
    settings = [*small, 'evaluate.features=["pixels"]', "sample.steps=2"]
    said = [part for text in settings for part in ("--set", text)]
    found = json.loads(atoll("evaluate", finished.path, *said, "--json", check=0).stdout)
    assert found["strategies"]["auto"]["features"]["pixels"]["frechet"]["num"] == 12
    assert "classes" not in found["strategies"]["auto"]  # nobody asked for the classifier
    (measured,) = read_evaluation(finished).measured.values()
    assert (measured.num, measured.sample.steps, measured.classes) == (12, 2, None)
    assert "unknown key" in one_line(atoll("evaluate", finished.path, "--set", "evaluate.what=1"))


def test_a_study_that_is_not_there(tmp_path):
    assert "no such study" in one_line(atoll("study", tmp_path / "gone.toml"))
