"""The routes for vectors and scores on live servers, with the openai package and by hand: what comes back, and every field's effect."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest

from llmx_server.protocol.pooling import ClassifyRequest, EmbeddingRequest, PoolingRequest, RerankRequest, ScoreRequest
from llmx_server.protocol.pooling_fields import POOLING_FIELDS
from llmx_server.routes.cohere import CohereEmbedRequest
from tests.pooling.checkpoints import PAIRS, TEXTS, rows, vectors, write
from tests.server.processes import serve

KINDS = {"vectors": ("bert", "mean_tokens"), "labels": ("bert_labels", None), "cross": ("bert_cross", None)}
OPTIONS = ("--platform", "cpu", "--threads", "1", "--dtype", "float32", "--num-blocks", "300")
BODIES: dict[str, dict[str, Any]] = {
    "/v1/embeddings": {"input": "a"},
    "/pooling": {"input": "a"},
    "/classify": {"input": "a"},
    "/score": {"queries": "a", "documents": ["france"]},
    "/rerank": {"query": "a", "documents": ["france"]},
    "/v2/embed": {"texts": ["a"]},
}
BODY_MODELS = {
    "/v1/embeddings": EmbeddingRequest,
    "/pooling": PoolingRequest,
    "/classify": ClassifyRequest,
    "/score": ScoreRequest,
    "/rerank": RerankRequest,
    "/v2/embed": CohereEmbedRequest,
}


class Served:
    """Servers by kind of model; the transformers models that they serve."""

    def __init__(self, stack: ExitStack, root: Path) -> None:
        self.folders = {kind: root / kind for kind in KINDS}
        more = {"vectors": {"matryoshka_dimensions": [8, 16]}}
        self.models = {kind: write(self.folders[kind], name, pooling, **more.get(kind, {})) for kind, (name, pooling) in KINDS.items()}
        self.urls = {kind: stack.enter_context(serve(str(folder), *OPTIONS)).url for kind, folder in self.folders.items()}

    def post(self, kind: str, path: str, **body: Any) -> httpx.Response:
        return httpx.post(self.urls[kind] + path, json=body, timeout=60)

    def ask(self, kind: str, path: str, **body: Any) -> dict[str, Any]:
        response = self.post(kind, path, **body)
        assert response.status_code == 200, response.text
        return dict(response.json())

    def refused(self, kind: str, path: str, **body: Any) -> dict[str, Any]:
        response = self.post(kind, path, **body)
        assert response.status_code == 400, response.text
        return dict(response.json()["error"])


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with ExitStack() as stack:
        yield Served(stack, tmp_path_factory.mktemp("served"))


def close(a: Any, b: Any) -> bool:
    return bool(np.abs(np.array(a) - np.array(b)).max() < 1e-4)


def test_b088_the_openai_package_and_both_encodings_give_the_same_vector(served: Served) -> None:
    wanted = vectors(served.models["vectors"], served.folders["vectors"], TEXTS, "mean")
    with openai.OpenAI(base_url=served.urls["vectors"] + "/v1", api_key="unused", max_retries=0) as client:
        for encoding in ({}, {"encoding_format": "float"}, {"encoding_format": "base64"}):  # the package asks for base64 by itself
            answer = client.embeddings.create(model="vectors", input=TEXTS, **encoding)
            found = [np.frombuffer(base64.b64decode(one.embedding), "<f4") if isinstance(one.embedding, str) else one.embedding for one in answer.data]
            assert [one.index for one in answer.data] == [0, 1, 2, 3] and {one.object for one in answer.data} == {"embedding"}
            assert close(found, wanted) and answer.usage.prompt_tokens == answer.usage.total_tokens > 4
    plain = served.ask("vectors", "/v1/embeddings", input=TEXTS[0])
    assert plain["object"] == "list" and plain["id"].startswith("embd-") and len(plain["data"][0]["embedding"]) == 32


def test_b089_limits_of_embeddings(served: Served) -> None:
    ask, refused = served.ask, served.refused
    assert refused("vectors", "/v1/embeddings", input="a " * 70)["code"] == "context_length_exceeded"
    assert ask("vectors", "/v1/embeddings", input="a " * 70, truncate_prompt_tokens=-1)["usage"]["prompt_tokens"] == 64
    for empty in ("", [], [""], [[]]):
        assert refused("vectors", "/v1/embeddings", input=empty)["param"] == "input"
    many = ask("vectors", "/v1/embeddings", input=[" ".join(["paris"] * (1 + i % 9)) for i in range(100)])["data"]
    assert [one["index"] for one in many] == list(range(100)) and many[9]["embedding"] == many[0]["embedding"] != many[1]["embedding"]
    for dimensions in (0, 33, 12):
        assert refused("vectors", "/v1/embeddings", input="a", dimensions=dimensions)["param"] == "dimensions"
    whole = np.array(ask("vectors", "/v1/embeddings", input="a")["data"][0]["embedding"])
    short = ask("vectors", "/v1/embeddings", input="a", dimensions=8)["data"][0]["embedding"]
    assert close(short, whole[:8] / np.linalg.norm(whole[:8]))  # of length 1 again
    ids = ask("vectors", "/v1/embeddings", input=[[2, 11, 3]])  # [CLS] a [SEP]
    assert close(ids["data"][0]["embedding"], whole) and ids["usage"]["prompt_tokens"] == 3
    assert refused("vectors", "/v1/embeddings", input=[2, 40])["message"] == "input[0] holds token id 40: the vocabulary is 0..39"


def test_pooling_gives_what_the_task_says(served: Served) -> None:
    wanted = rows(served.models["vectors"], served.folders["vectors"], TEXTS[0])
    answer = served.ask("vectors", "/pooling", input=TEXTS[0], task="token_embed", use_activation=False)
    assert close(answer["data"][0]["data"], wanted) and answer["data"][0]["object"] == "pooling"
    own = served.ask("vectors", "/pooling", input=TEXTS[0])["data"][0]["data"]
    assert close(own, vectors(served.models["vectors"], served.folders["vectors"], TEXTS[:1], "mean")[0])
    assert served.refused("vectors", "/pooling", input="a", task="classify")["param"] == "task"
    assert len(served.ask("labels", "/pooling", input="a")["data"][0]["data"]) == 3


def test_classes(served: Served) -> None:
    answer = served.ask("labels", "/classify", input=TEXTS)
    for one, text in zip(answer["data"], TEXTS, strict=True):
        scores = np.exp(rows(served.models["labels"], served.folders["labels"], text))
        assert close(one["probs"], scores / scores.sum()) and one["num_classes"] == 3
        assert one["label"] == ("no", "yes", "perhaps")[int(scores.argmax())]
    for path in ("/v1/embeddings", "/score", "/rerank"):
        assert served.refused("labels", path, **BODIES[path])["param"] in ("task", "model")
    assert "vectors, no text" in served.refused("vectors", "/v1/chat/completions", messages=[{"role": "user", "content": "a"}])["message"]
    assert "scores, no text" in served.refused("labels", "/v1/completions", prompt="a", stream=True)["message"]


@pytest.mark.parametrize("names", [("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2")])
def test_scores_under_every_name(served: Served, names: tuple[str, str]) -> None:
    wanted = [float(1 / (1 + np.exp(-rows(served.models["cross"], served.folders["cross"], *pair)[0]))) for pair in PAIRS]
    first, second = ([pair[side] for pair in PAIRS] for side in (0, 1))
    answer = served.ask("cross", "/v1/score", **{names[0]: first, names[1]: second})
    assert close([one["score"] for one in answer["data"]], wanted) and answer["usage"]["prompt_tokens"] > 20
    one = served.ask("cross", "/score", **{names[0]: first[0], names[1]: [second[0], second[0]]})["data"]
    assert close([entry["score"] for entry in one], [wanted[0]] * 2)
    assert served.refused("cross", "/score", **{names[0]: first, names[1]: second[:2]})["param"] == "queries"
    assert served.refused("cross", "/score", **{names[0]: first})["param"] == "documents"


@pytest.mark.parametrize("kind", ["cross", "vectors"])
@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_ranking(served: Served, kind: str, path: str) -> None:
    documents = [*TEXTS, "bananas"]
    model, folder = served.models[kind], served.folders[kind]
    if kind == "cross":
        wanted = [float(1 / (1 + np.exp(-rows(model, folder, "capital", one)[0]))) for one in documents]
    else:
        wanted = (vectors(model, folder, documents, "mean") @ vectors(model, folder, ["capital"], "mean")[0]).tolist()
    order = sorted(range(5), key=lambda i: -wanted[i])
    results = served.ask(kind, path, query="capital", documents=[*documents[:4], {"text": "bananas"}])["results"]
    assert [one["index"] for one in results] == order and close([one["relevance_score"] for one in results], [wanted[i] for i in order])
    assert [one["document"]["text"] for one in results] == [documents[i] for i in order]
    best = served.ask(kind, path, query="capital", documents=documents, top_n=2, return_documents=False)["results"]
    assert [one["index"] for one in best] == order[:2] and "document" not in best[0]
    same = served.ask(kind, path, query="capital", documents=[documents[0], documents[0] + " old yellow"], max_tokens_per_doc=6)["results"]
    assert same[0]["relevance_score"] == same[1]["relevance_score"] and [one["index"] for one in same] == [0, 1]


def test_cohere_embed(served: Served) -> None:
    wanted = vectors(served.models["vectors"], served.folders["vectors"], TEXTS[:2], "mean")
    kinds = ["float", "base64", "binary", "ubinary"]
    answer = served.ask("vectors", "/v2/embed", texts=TEXTS[:2], embedding_types=kinds)
    found = answer["embeddings"]
    assert close(found["float"], wanted) and answer["response_type"] == "embeddings_by_type" and answer["texts"] == TEXTS[:2]
    assert close([np.frombuffer(base64.b64decode(one), "<f4") for one in found["base64"]], wanted)
    bits = [[int("".join("1" if x > 0 else "0" for x in vector[i : i + 8]), 2) for i in range(0, 32, 8)] for vector in wanted]
    assert found["ubinary"] == bits and found["binary"] == [[one - 128 for one in vector] for vector in bits]
    parts = [{"content": [{"type": "text", "text": TEXTS[0]}]}]
    assert close(served.ask("vectors", "/v2/embed", inputs=parts)["embeddings"]["float"][0], wanted[0])
    long = "paris " * 70
    end, start = (served.ask("vectors", "/v2/embed", texts=[long + "old"], truncate=cut)["embeddings"]["float"][0] for cut in ("END", "START"))
    assert not close(end, start) and close(end, served.ask("vectors", "/v2/embed", texts=["paris " * 62])["embeddings"]["float"][0])
    assert served.ask("vectors", "/v2/embed", texts=["a"], output_dimension=8)["embeddings"]["float"][0][8:] == []
    assert served.ask("vectors", "/v2/embed", texts=[long], max_tokens=5)["meta"]["billed_units"]["input_tokens"] == 5
    wrong = served.post("vectors", "/v2/embed", texts=[long], truncate="NONE")
    assert wrong.status_code == 400 and set(wrong.json()) == {"id", "message"} and "72 tokens" in wrong.json()["message"]


def test_fields_of_all_routes(served: Served) -> None:
    """Every body model has the fields that work; refused ones say what to do, ignored ones are named in a Warning."""
    for path, model in BODY_MODELS.items():
        mine = [field for field in POOLING_FIELDS if path in field.routes]
        assert set(model.model_fields) == {field.name for field in mine if field.state == "works"}, path
        kind = {"/classify": "labels", "/score": "cross", "/rerank": "cross"}.get(path, "vectors")
        for field in mine:
            if field.state == "refused":
                response = served.post(kind, path, **{**BODIES[path], field.name: {"no": "such value"}})
                assert response.status_code == 400 and field.what in response.text.replace('\\"', '"'), (path, field.name)
            elif field.state == "ignored":
                warning = served.post(kind, path, **{**BODIES[path], field.name: {"some": "value"}}).headers["warning"]
                assert warning == f'299 llmx "ignored: {field.name} ({field.what})"'
            for value in field.neutral:
                response = served.post(kind, path, **{**BODIES[path], field.name: value})
                assert response.status_code == 200 and "warning" not in response.headers, (path, field.name, value)


def test_fields_that_change_the_run(served: Served) -> None:
    embed = "/v1/embeddings"
    named = served.ask("vectors", embed, input="a", request_id="mine", cache_salt="salt", user=None, model="vectors")
    assert named["id"] == "embd-mine" and named["model"] == "vectors"
    assert served.post("vectors", embed, input="a", model="another").status_code == 404
    assert served.refused("vectors", embed, input="a", priority=3)["param"] == "priority"
    assert served.refused("vectors", embed, input="a", cache_salt="x" * 129)["param"] == "cache_salt"
    left, right = (served.ask("vectors", embed, input="paris old a", truncate_prompt_tokens=3, truncation_side=side) for side in ("left", "right"))
    assert close(left["data"][0]["embedding"], served.ask("vectors", embed, input="a")["data"][0]["embedding"])
    assert close(right["data"][0]["embedding"], served.ask("vectors", embed, input="paris")["data"][0]["embedding"])
    bare = served.ask("vectors", embed, input="a", add_special_tokens=False)
    assert bare["usage"]["prompt_tokens"] == 1 and not close(bare["data"][0]["embedding"], served.ask("vectors", embed, input="a")["data"][0]["embedding"])
    raw = served.ask("vectors", embed, input="a", use_activation=False)["data"][0]["embedding"]
    assert abs(np.linalg.norm(raw) - 1) > 1e-2
    assert served.refused("vectors", embed, input="a", encoding_format="bytes")["param"] == "encoding_format"
    page = httpx.get(served.urls["vectors"] + "/metrics", timeout=60).text
    assert 'llmx:request_success_total{finished_reason="stop",model_name="vectors"}' in page
    assert json.loads(httpx.get(served.urls["vectors"] + "/health", timeout=60).text)["status"] == "ok"
