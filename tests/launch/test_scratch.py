import sys
from types import SimpleNamespace

from atoll.launch.scratch import scratch_folder


def test_every_machine_of_a_cluster_has_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("ATOLL_SCRATCH", str(tmp_path))
    context = SimpleNamespace(get_node_id=lambda: "0123456789abcdef0123")
    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(get_runtime_context=lambda: context))
    assert scratch_folder() == tmp_path / "0123456789abcdef"
    assert scratch_folder().is_dir()
