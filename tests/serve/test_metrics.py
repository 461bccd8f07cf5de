from prometheus_client.parser import text_string_to_metric_families


def numbers(one):
    answer = one.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    families = text_string_to_metric_families(answer.text)
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in families
        for sample in family.samples
    }


def test_what_was_done_is_counted(client):
    one = client()
    one.post("/v1/samples", json={"num": 3, "steps": 5})
    one.post("/v1/samples", json={"num": 0})
    told = numbers(one)
    assert told["atoll_requests_total", "/v1/samples", "200"] == 1
    assert told["atoll_requests_total", "/v1/samples", "422"] == 1
    assert told["atoll_step_seconds_count", "run"] == 5
    assert told["atoll_step_rows_sum", "run"] == 15
    assert told["atoll_expert_loads_total", "run"] == 2
    assert told["atoll_rows", "run"] == told["atoll_samples_waiting", "run"] == 0
    assert told[("atoll_requests_under_way",)] == 0
    assert told[("process_resident_memory_bytes",)] > 1e6
