import jsonschema
import pytest


def test_the_description_is_complete(client):
    document = client().get("/openapi.json").json()
    assert set(document["paths"]) == {
        "/healthz",
        "/readyz",
        "/metrics",
        "/v1/samples",
        "/v1/samples/{id}",
        "/v1/makers",
        "/v1/models",
        "/v1/models/{name}",
        "/v1/images/generations",
        "/v1/images/files/{name}",
        "/v1/parts",
    }
    for path, methods in document["paths"].items():
        for operation in methods.values():
            assert operation.get("description") or operation.get("summary"), path
            assert {"401", "422", "429"} <= set(operation["responses"]), path
    media = document["paths"]["/v1/samples"]["post"]["responses"]["200"]["content"]
    assert {"application/json", "image/png", "text/event-stream"} <= set(media)


def test_whatever_is_said_in_json_has_an_example_that_is_one(client):
    document = client().get("/openapi.json").json()
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    said = [answer for operation in operations for answer in operation["responses"].values()]
    said += [operation["requestBody"] for operation in operations if "requestBody" in operation]
    schemas = [
        one["content"]["application/json"]["schema"]
        for one in said
        if "application/json" in one.get("content", {})
    ]
    names = {schema["$ref"].rpartition("/")[2] for schema in schemas if "$ref" in schema}
    assert {"SamplesRequest", "SamplesAnswer", "ImagesRequest", "ImagesAnswer", "Refusal"} <= names
    for name in names:
        schema = {"$ref": f"#/components/schemas/{name}", "components": document["components"]}
        for example in document["components"]["schemas"][name]["examples"]:
            jsonschema.validate(example, schema)


@pytest.mark.parametrize("path", ["/docs", "/redoc", "/nothing"])
def test_no_page_that_would_load_something_from_elsewhere(client, path):
    answer = client().get(path)
    assert answer.status_code == 404
    assert answer.json()["error"]["type"] == "not_found_error"


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"null", b"\xff", b'{"num": 1e400}', b'{"num": NaN}'])
def test_what_is_no_request_is_told_so(client, body):
    answer = client().post("/v1/samples", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == (400 if body == b"\xff" else 422)
    assert answer.json()["error"]["message"]


def test_a_wrong_method(client):
    answer = client().put("/v1/samples")
    assert (answer.status_code, answer.headers["allow"]) == (405, "POST")


def test_pages_are_mounted_beside_the_api(client):
    from fastapi import APIRouter

    pages = APIRouter()
    pages.add_api_route("/", lambda: "hello")
    assert client(pages=[pages], token="long enough").get("/").json() == "hello"
