"""What is refused before any engine reads a weight, and what the refusal says."""

import json
import shutil

import pytest

from rmscore.checkpoint import content_hash, open_checkpoint
from rmscore.errors import CheckpointError
from rmscore.safetensors_header import tensors

pytest.importorskip("torch")


@pytest.fixture
def folder(tiny, tmp_path):
    return shutil.copytree(tiny("deberta-v3-xsmall"), tmp_path / "m")


def change(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_a_whole_checkpoint_opens(folder):
    """A good folder gives its head, limit and pooling."""
    model = open_checkpoint(folder)
    assert model.head == ("classifier.bias", "classifier.weight", "pooler.dense.bias", "pooler.dense.weight")
    assert (model.max_tokens, model.objectives, model.causal) == (512, 1, False)


@pytest.mark.parametrize("file", ["config.json", "model.safetensors"])
def test_half_a_checkpoint_is_refused(folder, file):
    """A missing or cut file is named."""
    path = folder / file
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(CheckpointError, match=file):
        open_checkpoint(folder)
    path.unlink()
    with pytest.raises(CheckpointError, match=file):
        open_checkpoint(folder)


def test_a_missing_shard_is_named(folder):
    """An index that names a shard which is not there says which."""
    (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
    shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    with pytest.raises(CheckpointError, match=r"model-00002-of-00002\.safetensors: named by .* but missing"):
        open_checkpoint(folder)


def test_an_index_cannot_point_outside(folder):
    """A shard outside the folder is refused."""
    shutil.move(folder / "model.safetensors", folder.parent / "w.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "../w.safetensors"}}))
    with pytest.raises(CheckpointError, match="missing"):
        open_checkpoint(folder)


def test_pickled_weights_are_refused_and_never_run(folder, tmp_path):
    """A pickle that would touch a file on loading is refused, and the file does not appear."""
    marker = tmp_path / "ran"
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch " + str(marker).encode() + b"'\ntR.")
    with pytest.raises(CheckpointError, match="pickled weights can run code"):
        open_checkpoint(folder)
    assert not marker.exists()


def test_code_of_the_checkpoint_never_runs(folder, tmp_path):
    """A folder that asks for its own code is loaded without it, or refused."""
    from rmscore.backends import Settings, load_backend

    marker = tmp_path / "ran"
    (folder / "modeling_x.py").write_text(f"open({str(marker)!r}, 'w')\nclass X: pass\n")
    change(folder, auto_map={"AutoModelForSequenceClassification": "modeling_x.X"}, model_type="nobodys-model")
    with pytest.raises(CheckpointError, match="cannot load"):
        load_backend("eager", open_checkpoint(folder), Settings(threads=1))
    assert not marker.exists()


@pytest.mark.parametrize("name", ["DebertaV2ForMaskedLM", "LlamaForCausalLM", "BertModel"])
def test_what_is_no_sequence_classifier_is_refused(folder, name):
    """A model without a reward head is refused by the name of its class."""
    change(folder, architectures=[name])
    with pytest.raises(CheckpointError, match=f"{name} is not a sequence classifier"):
        open_checkpoint(folder)


def rename_weights(folder, rename):
    """Rewrite the weight file's header with other names of the same length."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = data[8 : 8 + length]
    for old, new in rename.items():
        assert len(old) == len(new)
        assert old in header
        header = header.replace(old, new)
    path.write_bytes(data[:8] + header + data[8 + length :])


def test_a_missing_head_is_refused(folder):
    """Weights without a classifier are refused before anything is scored."""
    rename_weights(folder, {b'"classifier.': b'"value_head.'})
    with pytest.raises(CheckpointError, match=r"no head weights .* 'value_head.bias' is a value head"):
        open_checkpoint(folder)


@pytest.mark.parametrize(
    "name", [b"classifier.weight", b"pooler.dense.weight", b"deberta.encoder.layer.1.output.dense.bias"]
)
def test_a_single_missing_weight_is_refused(folder, name):
    """One weight that is not there would be random, so nothing is scored, whichever it is."""
    from rmscore.backends import Settings, load_backend

    rename_weights(folder, {name: name[:-1] + b"X"})
    with pytest.raises(CheckpointError, match=f"weights missing: {name.decode()}"):
        load_backend("eager", open_checkpoint(folder), Settings(threads=1))


def test_the_hash_follows_every_byte_that_decides(folder):
    """Any change of weights, configuration, tokenizer or template changes the content hash; a note beside them does not."""
    seen = [content_hash(open_checkpoint(folder))]
    (folder / "README.md").write_text("a note")
    assert content_hash(open_checkpoint(folder)) == seen[0]
    weights = folder / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(data)
    seen.append(content_hash(open_checkpoint(folder)))
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (folder / name).write_text((folder / name).read_text() + "\n")
        seen.append(content_hash(open_checkpoint(folder)))
    (folder / "chat_template.jinja").write_text("x")
    seen.append(content_hash(open_checkpoint(folder)))
    assert len(set(seen)) == len(seen)


@pytest.mark.parametrize("name", ["./nowhere", "/no/such/folder", "a/b/c"])
def test_a_missing_folder_is_one_line(name):
    """A path that is no folder is answered at once, without asking a hub."""
    with pytest.raises(CheckpointError, match="no such folder"):
        open_checkpoint(name)


def test_an_uncached_hub_id_offline_is_one_line(monkeypatch, tmp_path):
    """With the hub switched off, an id that is not in the cache is one clear line."""
    hub = pytest.importorskip("huggingface_hub")
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(CheckpointError, match="nobody/nothing: no such folder and not in the hub cache") as caught:
        open_checkpoint("nobody/nothing")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"\x05", (10**12).to_bytes(8, "little"), b"\x02" + bytes(7) + b"[]"])
def test_what_is_no_safetensors_file_is_refused(tmp_path, content):
    """Empty, cut and foreign files are refused without reading further."""
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(CheckpointError, match="not a whole safetensors file"):
        tensors(path)
