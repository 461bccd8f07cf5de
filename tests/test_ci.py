"""What CI does where there is no browser: it fails, and says so."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

RUN = Path(__file__).parents[1] / ".ci" / "run"


@pytest.fixture
def machine(tmp_path):
    """A machine with nothing but a shell, on which `make` leaves a note."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name in ("bash", "dirname", "env", "touch"):
        (bin_folder / name).symlink_to(shutil.which(name) or "")
    add(bin_folder, "id", "echo 0")
    add(bin_folder, "make", "touch made")
    (tmp_path / ".ci").mkdir()
    shutil.copy(RUN, tmp_path / ".ci" / "run")
    return tmp_path


def add(folder: Path, name: str, body: str) -> None:
    path = folder / name
    path.write_text(f"#!{shutil.which('bash')}\n{body}\n")
    path.chmod(0o755)


def run(machine: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": str(machine / "bin")}
    return subprocess.run(
        [str(machine / ".ci" / "run")], env=environment, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("installer", ["exit 1", "exit 0", None])
def test_without_a_browser_it_fails_and_says_so(machine, installer):
    if installer is not None:
        add(machine / "bin", "apt-get", installer)
    done = run(machine)
    assert done.returncode == 1
    assert "Chromium, which is not here and cannot be installed" in done.stderr
    assert not (machine / "made").exists()


def test_with_one_it_goes_on(machine):
    add(machine / "bin", "chromium", "exit 0")
    done = run(machine)
    assert done.returncode == 0, done.stderr
    assert (machine / "made").exists()


def test_one_that_can_be_installed_is(machine):
    chromium = machine / "bin" / "chromium"
    add(
        machine / "bin",
        "apt-get",
        f'[ "$1" = install ] && touch {chromium} && {shutil.which("chmod")} +x {chromium}; exit 0',
    )
    assert run(machine).returncode == 0
    assert (machine / "made").exists()
