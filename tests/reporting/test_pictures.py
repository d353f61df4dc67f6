"""Pictures as files, and the report as one HTML file."""

from __future__ import annotations

import struct
from html.parser import HTMLParser

import pytest

from marsrl_verl.core.sanitize import markdown
from marsrl_verl.evaluation.estimators import Estimate
from marsrl_verl.evaluation.pictures import Bars, Curves, Matrix, Point, Series
from marsrl_verl.reporting.html import report_html, write_report
from marsrl_verl.reporting.pictures import draw_pictures

HALF = Estimate(0.5, 0.4, 0.6, 30)
NONE = Estimate(None, None, None, 0)
LABELS = {"x_label": "x", "y_label": "y"}
PICTURES = [
    Curves(
        name="curve",
        title="A $title$ of <b>words</b>",
        note="a | note",
        series=[
            Series("line", [Point(1, HALF, "1"), Point(2, HALF, "2")]),
            Series("empty", [Point(1, NONE)]),
        ],
        doubling=True,
        **LABELS,
    ),
    Bars(name="bars", title="bars", categories=["1", "2"], parts={"a": [3, 0], "b": [0, 0]}, **LABELS),
    Matrix(name="matrix", title="matrix", rows=["r", "s"], columns=["c"], counts=[[2], [0]], **LABELS),
]


def test_each_picture_is_a_file_that_the_text_names(tmp_path):
    text = draw_pictures(tmp_path, PICTURES)
    for one in PICTURES:
        data = (tmp_path / "pictures" / f"{one.name}.png").read_bytes()
        assert struct.unpack(">II", data[16:24]) == (960, 680)
        assert f"(pictures/{one.name}.png)" in text
    assert "- **A \\$title\\$ of \\<b\\>words\\</b\\>**: a \\| note" in text
    assert draw_pictures(tmp_path, []) == ""


class Page(HTMLParser):
    """Elements and their attributes, and all text outside of the style."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.text += data


def test_the_file_holds_its_pictures_and_nothing_from_elsewhere(tmp_path):
    draw_pictures(tmp_path / "run", PICTURES)
    secret = tmp_path / "secret.png"
    secret.write_bytes(b"secret")
    (tmp_path / "run" / "notes.txt").write_text("a note")
    text = "# The *run*\n\n" + "\n".join(
        f"![one]({path})"
        for path in (
            "pictures/curve.png",
            "../secret.png",
            secret,
            "https://a.example/b.png",
            "notes.txt",
            "no.png",
        )
    )
    write_report(tmp_path / "run" / "report.md", text)
    page = Page((tmp_path / "run" / "report.html").read_text())
    images = [attrs for tag, attrs in page.elements if tag == "img"]
    assert len(images) == 1 and images[0]["src"].startswith("data:image/png;base64,iVBOR")
    assert "<title>The run</title>" in (tmp_path / "run" / "report.html").read_text()
    assert (tmp_path / "run" / "report.md").read_text() == text


HOSTILE = [
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "[click](javascript:alert(1))",
    "![x](https://a.example/x.png)",
    "<https://a.example>",
    '"><svg onload=alert(1)>',
    "</style><style>body{display:none}</style>",
]


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("escaped", [True, False])
def test_what_models_write_is_text(tmp_path, text, escaped):
    shown = markdown(text) if escaped else text
    found = report_html(
        f"# {shown}\n\n| a |\n|---|\n| {shown} |\n\n![{shown}](no.png)\n\n{shown}\n", tmp_path
    )
    page = Page(found)
    expected = {
        "html",
        "head",
        "meta",
        "title",
        "style",
        "body",
        "h1",
        "p",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
    }
    assert {tag for tag, _ in page.elements} - {"a"} <= expected
    assert [tag for tag, _ in page.elements].count("style") == 1
    links = [attrs["href"] for tag, attrs in page.elements if tag == "a"]
    assert not escaped or not links
    assert all(link.startswith("https://") for link in links)
    assert not escaped or page.text.count(text) >= 4
    policy = next(attrs["content"] for tag, attrs in page.elements if "http-equiv" in attrs)
    assert "default-src 'none'" in policy and "script" not in policy
