from atoll import doctor


def test_it_names_what_decides():
    found = doctor.examine()
    assert list(found)[:3] == ["atoll", "python", "torch"]
    assert int(found["cores"]) >= 1
    assert found["device"].startswith(("cpu", "cuda", "mps"))


def test_a_missing_extra_is_named():
    assert doctor._extra(["json", "no_such_module_at_all"]) == "missing no_such_module_at_all"
    assert doctor._extra(["json"]) == "installed"
