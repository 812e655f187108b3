"""`fedfm demo`."""

from pathlib import Path

from fedfm.cli import demo


def test_the_demo_compares_the_methods_in_a_table_and_a_picture(command, monkeypatch):
    quick = ["rounds=2", "epochs=1", "model.name=mlp", "model.hidden=[8]"]
    methods = {label: [*given, *quick] for label, given in demo.METHODS.items()}
    monkeypatch.setattr(demo, "METHODS", methods)
    answer = command("demo", "--seeds", "2", "--out", "shown")
    assert answer.code == 0, answer.err
    for label in methods:
        assert label in answer.out
        assert f"{label}, seed 1  round 2/2" in answer.err
    assert Path("shown/demo.png").read_bytes().startswith(b"\x89PNG")
    assert "report in shown/report.html" in answer.out
    assert "fedfm-lite" in Path("shown/report.html").read_text()
