def test_a_server_is_well_and_ready(client):
    one = client()
    assert one.get("/healthz").json() == one.get("/readyz").json() == {"status": "ok"}


def test_a_server_that_stops_is_not_ready(client):
    one = client()
    one.app.state.service.scheduler.stopping = True
    answer = one.get("/readyz")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "5")
    assert one.get("/healthz").status_code == 200
    assert one.post("/v1/samples", json={}).status_code == 503
