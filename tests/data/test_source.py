"""Downloads from a server on this machine, checksums, and what users read when they fail."""

import functools
import hashlib
import io
import json
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pooch
import pytest
import torch

from fedfm.cli.data import data as list_data
from fedfm.core.errors import UserError
from fedfm.data import SOURCES, Dataset, File, Source, Split, load
from fedfm.data.source import data_folder, fetch

CONTENT = bytes(range(256)) * 1000
MD5 = hashlib.md5(CONTENT).hexdigest()


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, format, *args):
        pass


@pytest.fixture
def server(tmp_path, monkeypatch) -> Iterator[ThreadingHTTPServer]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "toy.bin").write_bytes(CONTENT)
    handler = functools.partial(Handler, directory=str(tmp_path / "site"))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as http:
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        yield http
        http.shutdown()
        thread.join()


def read(folder: Path) -> Dataset:
    values = torch.frombuffer(bytearray((folder / "toy.bin").read_bytes()), dtype=torch.uint8)
    split = Split(values[:2].reshape(2, 1, 1, 1), torch.tensor([0, 1]))
    return Dataset("toy", split, split, ("a", "b"))


def toy(port: int, md5: str = MD5) -> Source:
    return Source("toy", "a toy", read, (File("toy.bin", f"http://127.0.0.1:{port}/toy.bin", md5),))


def test_a_missing_file_is_downloaded_once_and_then_read(server, tmp_path, monkeypatch):
    monkeypatch.setitem(SOURCES, "toy", toy(server.server_port))
    assert load("toy", dir=tmp_path / "data").train.inputs.flatten().tolist() == [0, 1]
    assert [p.name for p in (tmp_path / "data" / "toy").iterdir()] == ["toy.bin"]
    (tmp_path / "site" / "toy.bin").unlink()
    assert len(load("toy", dir=tmp_path / "data").train) == 2


def test_a_download_with_another_checksum_is_refused_and_not_kept(server, tmp_path):
    (tmp_path / "site" / "toy.bin").write_bytes(CONTENT[:-1])
    with pytest.raises(UserError, match=r"^http.*/toy\.bin") as caught:
        fetch(toy(server.server_port), tmp_path)
    assert MD5 in str(caught.value)
    assert list((tmp_path / "toy").iterdir()) == []


def test_without_a_server_the_message_says_what_to_put_where(server, tmp_path):
    server.shutdown()
    server.server_close()
    with pytest.raises(UserError, match=r"toy\.bin.*ConnectionError") as caught:
        fetch(toy(server.server_port), tmp_path)
    assert f"http://127.0.0.1:{server.server_port}/toy.bin" in str(caught.value)
    assert str(caught.value).endswith(str(tmp_path / "toy"))


def test_a_file_that_left_the_server_gives_the_same_advice(server, tmp_path):
    (tmp_path / "site" / "toy.bin").unlink()
    with pytest.raises(UserError, match="404") as caught:
        fetch(toy(server.server_port), tmp_path)
    assert str(caught.value).endswith(str(tmp_path / "toy"))


def test_a_server_that_hangs_up_midway_is_reported_and_nothing_is_kept(
    server, tmp_path, monkeypatch
):
    def hang_up(handler):
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(CONTENT)))
        handler.end_headers()
        handler.wfile.write(CONTENT[:1000])

    monkeypatch.setattr(Handler, "do_GET", hang_up)
    with pytest.raises(UserError, match=r"toy\.bin.*Error"):
        fetch(toy(server.server_port), tmp_path)
    assert list((tmp_path / "toy").iterdir()) == []


def test_a_file_put_there_by_hand_needs_no_server(tmp_path):
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "toy.bin").write_bytes(CONTENT)
    assert fetch(toy(1), tmp_path, download=False) == tmp_path / "toy"


def test_an_altered_file_is_refused_with_both_checksums(server, tmp_path):
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "toy.bin").write_bytes(CONTENT[:-1])
    with pytest.raises(UserError, match="Delete") as caught:
        fetch(toy(server.server_port), tmp_path)
    found = hashlib.md5(CONTENT[:-1]).hexdigest()
    for word in (str(tmp_path / "toy" / "toy.bin"), MD5, found):
        assert word in str(caught.value)
    assert (tmp_path / "toy" / "toy.bin").read_bytes() == CONTENT[:-1]


def test_download_false_never_asks_the_server(server, tmp_path, monkeypatch):
    monkeypatch.setitem(SOURCES, "toy", toy(server.server_port))
    with pytest.raises(UserError, match=r"^toy\.bin.*http.*/toy\.bin"):
        load("toy", dir=tmp_path, download=False)
    assert not (tmp_path / "toy").exists()


def test_a_terminal_shows_a_bar(server, tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    screen = Terminal()
    monkeypatch.setattr(sys, "stderr", screen)
    monkeypatch.setenv("TERM", "xterm")
    fetch(toy(server.server_port), tmp_path)
    assert "toy.bin" in screen.getvalue()
    assert "256.0/256.0 kB" in screen.getvalue()


def test_elsewhere_nothing_is_printed(server, tmp_path, capfd, caplog, monkeypatch):
    monkeypatch.setattr(pooch.get_logger(), "handlers", [caplog.handler])
    fetch(toy(server.server_port), tmp_path)
    assert capfd.readouterr() == ("", "")
    assert caplog.text == ""


def test_data_lie_in_dir_else_in_the_variable_else_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDFM_DATA", raising=False)
    assert "fedfm" in data_folder().parts
    monkeypatch.setenv("FEDFM_DATA", str(tmp_path / "variable"))
    assert data_folder() == tmp_path / "variable"
    assert data_folder(tmp_path / "dir") == tmp_path / "dir"


def test_the_command_tells_which_files_are_missing_and_where(tmp_path, monkeypatch, capsys):
    def listed():
        list_data(tmp_path, "json")
        return {row["name"]: row for row in json.loads(capsys.readouterr().out)}

    monkeypatch.setitem(SOURCES, "toy", toy(1))
    before = listed()
    assert list(before) == list(SOURCES)
    assert before["toy"]["missing"] == ["toy.bin"]
    assert before["toy"]["folder"] == str(tmp_path / "toy")
    assert before["digits"]["present"]
    assert len(before["fashion-mnist"]["missing"]) == 4
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "toy.bin").touch()
    assert listed()["toy"]["present"]
