import pytest

from atoll.serve.access import is_token
from atoll.serve.limits import Limits

SECRET = {"token": "correct horse"}


@pytest.mark.parametrize(
    "given", [None, "Bearer", "Bearer wrong", "Basic correct horse", "correct horse", "Bearer ÿ"]
)
def test_who_does_not_know_the_token_stays_outside(client, given):
    headers = {} if given is None else {"Authorization": given.encode()}
    answer = client(**SECRET).get("/v1/models", headers=headers)
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["type"] == "authentication_error"


def test_who_knows_the_token_comes_in(client):
    answer = client(**SECRET).get("/v1/models", headers={"Authorization": "Bearer correct horse"})
    assert answer.status_code == 200


@pytest.mark.parametrize(
    "path", ["/v1/samples", "/v1/models", "/metrics", "/v1/images/generations", "/v1/images/filesx"]
)
def test_everything_that_tells_something_needs_the_token(client, path):
    assert client(**SECRET).get(path).status_code == 401


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/openapi.json"])
def test_whether_it_is_well_is_no_secret(client, path):
    assert client(**SECRET).get(path).status_code == 200


def test_tokens_are_compared_in_constant_time(monkeypatch, client):
    import hmac

    compared = []
    real = hmac.compare_digest

    def compare(*pair):
        compared.append(pair)
        return real(*pair)

    monkeypatch.setattr(hmac, "compare_digest", compare)
    client(**SECRET).get("/v1/models", headers={"Authorization": "Bearer wrong"})
    assert compared == [(b"wrong", b"correct horse")]


def test_pages_of_other_servers_may_not_ask(client):
    one = client()
    headers = {"Origin": "http://elsewhere.example"}
    assert one.post("/v1/samples", json={}, headers=headers).status_code == 403
    preflight = one.options("/v1/samples", headers={**headers, "Access-Control-Request-Method": "POST"})
    assert "access-control-allow-origin" not in preflight.headers
    assert one.post("/v1/samples", json={}, headers={"Origin": "http://testserver"}).status_code == 200


def test_only_names_of_this_machine_are_answered_to(client):
    one = client(base_url="http://localhost:8000", hosts={"localhost"})
    assert one.get("/healthz").status_code == 200
    assert one.get("/healthz", headers={"Host": "rebound.example"}).status_code == 421
    assert one.get("/healthz", headers={"Host": "[", "Origin": "http://["}).status_code == 421


def test_large_requests_are_refused_whether_they_say_so_or_not(client):
    one = client(limits=Limits(body=1000))
    assert one.post("/v1/samples", json={"user": "x" * 2000}).status_code == 413

    def pieces():
        for _ in range(100):
            yield b"x" * 100

    assert one.post("/v1/samples", content=pieces()).status_code == 413
    assert one.post("/v1/samples", json={}).status_code == 200


@pytest.mark.parametrize("length", ["-1", "many"])
def test_a_length_that_is_none_is_refused(client, length):
    assert client().get("/healthz", headers={"Content-Length": length}).status_code == 400


@pytest.mark.parametrize("path", ["/healthz", "/nothing", "/v1/models"])
def test_browsers_are_told_to_load_nothing_from_elsewhere(client, path):
    headers = client().get(path).headers
    policy = headers["content-security-policy"]
    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    assert headers["x-content-type-options"] == "nosniff"


def test_tokens():
    assert is_token("secret", "secret")
    assert not is_token("secre", "secret")
    assert not is_token("", "secret")
    assert not is_token("sécret", "secret")


def test_a_browser_asks_for_the_token_where_a_page_tells_of_a_run(client):
    closed = client(**SECRET)
    answer = closed.get("/watch")
    assert (answer.status_code, answer.headers["www-authenticate"]) == (401, 'Basic realm="Atoll"')
    assert closed.get("/watch", auth=("anybody", "wrong")).status_code == 401
    assert closed.get("/watch", auth=("anybody", "correct horse")).status_code == 404, "nothing to watch here"
    assert closed.get("/watch", headers={"Authorization": "Basic ÿ!".encode()}).status_code == 401
