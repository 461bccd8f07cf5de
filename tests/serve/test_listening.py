import pytest

from atoll.errors import ConfigError
from atoll.serve.listening import check_door, hosts_of, is_local


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.3.2.1", "::1"])
def test_this_machine_needs_no_token(host):
    assert is_local(host)
    check_door(host, None, anybody=False)
    assert host in hosts_of(host, None, anybody=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.7", "example.org"])
def test_beyond_it_one_must_be_said(host):
    assert not is_local(host)
    with pytest.raises(ConfigError, match="--token"):
        check_door(host, None, anybody=False)
    check_door(host, "correct horse", anybody=False)
    check_door(host, None, anybody=True)
    assert hosts_of(host, "correct horse", anybody=False) is None


def test_a_token_must_not_be_guessed():
    with pytest.raises(ConfigError, match="longer"):
        check_door("127.0.0.1", "1234", anybody=False)
