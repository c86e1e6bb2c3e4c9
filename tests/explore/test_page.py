"""The page of `attnsim explore`, driven in Chromium: an architect's task, and what it shows is what was answered."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from .browsing import Page, Served

Open = Callable[..., Page]
MINE = Path(__file__).parents[2] / "examples" / "mine.csv"
TASK = {"hbm": "6TB/s", "l2": "2x", "exp": "1.5x"}
QUERY = "hbm=6TB/s&l2=2x&exp=1.5x"
MIX = "pass=prefill: 0.5; pass=decode, batch=16: 0.5"
LOOKS = [(1400, "light"), (420, "dark"), (420, "light"), (1400, "dark")]
TABS = ("Pictures", "Compare kernels", "Budget", "My data", "Why")


@pytest.mark.parametrize(("width", "scheme"), LOOKS[:2])
def test_an_architect_answers_the_task_in_the_page_alone(opened: Open, tmp_path: Path, width: int, scheme: str) -> None:
    """Twice the L2 bandwidth, 1.5 times the exponentials and 6 TB/s, for Llama-3-70B: prefill, decode, a budget."""
    page = opened("", width, scheme)
    page.settled()
    page.write("HBM bandwidth, multiple or value", "6TB/s")
    page.slide("L2 bandwidth", 20)  # of 0.05x each
    page.slide("exponentials", 10)
    prefill = page.expect(TASK)
    page.settled()
    assert page.state == TASK
    assert "as fast as unchanged" in prefill
    assert page.tab.locator("#card-split svg").is_visible()
    page.tab.get_by_role("combobox", name="Pass").select_option("decode")
    decode = page.expect({**TASK, "pass": "decode"})
    page.settled()
    assert decode != prefill
    page.open("Budget")
    page.tab.get_by_role("combobox", name="Mix of questions").fill(MIX)
    page.write("Limits", "area<=1.1x")
    page.tab.get_by_role("combobox", name="and", exact=True).select_option("area")
    page.tab.get_by_role("button", name="Search").click()
    page.until("document.querySelector('#card-budget svg')")
    heads = page.tab.locator("#card-budget th").all_inner_texts()
    assert {"pass=prefill", "pass=decode, batch=16"} < set(heads)
    load = page.tab.get_by_role("button", name="Load machine").first
    machine = dict(one.split() for one in (load.get_attribute("aria-label") or "").partition(": ")[2].split(", "))
    load.click()
    asked = {"pass": "decode", **{key: value for key, value in machine.items() if value != "1x"}}
    budget = {"space": "hbm,l2,exp", "limit": "area<=1.1x", "minimise": "time,area", "case": MIX}
    page.expect(asked | budget)
    page.until("!location.search.includes('6TB')")  # the address follows after a pause
    assert page.state == asked | budget
    page.until("document.querySelectorAll('#sentence > span').length === 2")  # with the next lever
    page.tab.screenshot(path=tmp_path / "task.png", full_page=True)


@pytest.mark.parametrize(("width", "scheme"), LOOKS)
def test_its_pictures_fit_the_window(opened: Open, tmp_path: Path, width: int, scheme: str) -> None:
    """Nothing is wider than the window, and no two texts of a picture lie on each other, in any tab."""
    page = opened(QUERY, width, scheme)
    for tab in TABS if scheme == "dark" else TABS[:1]:
        page.open(tab)
        page.settled()
        if tab == "My data":
            page.tab.get_by_label("Timings").set_input_files(MINE)
            page.until("document.querySelector('#card-mine svg')")
        wide, window = page.tab.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert wide <= window, tab
        assert page.tab.evaluate(OUTSIDE) == [], tab
        assert page.tab.evaluate(OVERLAPPING) == [], tab
        page.tab.screenshot(path=tmp_path / f"{tab}-{width}-{scheme}.png", full_page=True)


OUTSIDE = """[...document.querySelectorAll('main *, form *')]
  .filter(one => (one.offsetParent || one.closest('svg')) && !one.closest('.scroll, .unseen'))
  .map(one => [one, one.getBoundingClientRect()])
  .filter(([one, box]) => box.width && (box.right > innerWidth + 1 || box.left < -1))
  .map(([one]) => one.outerHTML.slice(0, 99))"""
OVERLAPPING = """[...document.querySelectorAll('.body svg')].flatMap(svg => {
  const texts = [...svg.querySelectorAll('text')].filter(one => one.textContent.trim() && one.getClientRects().length)
    .map(one => [one.textContent, one.getBoundingClientRect()]);
  const over = (p, q) => Math.min(p.right, q.right) - Math.max(p.left, q.left) > 2
    && Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top) > 4;
  return texts.flatMap(([a, p], i) => texts.slice(i + 1).filter(([, q]) => over(p, q)).map(([b]) => `${a} on ${b}`));
})"""


def test_its_numbers_are_those_that_were_answered(opened: Open, served: Served) -> None:
    page = opened(QUERY).settled()
    assert page.sentence == served.api("headline", state=TASK)["sentence"]
    for name in ("units", "levers", "curve"):
        answer = served.api("picture", name=name, state=TASK)
        page.tab.locator(f"#card-{name} summary").click()
        page.until(f"document.querySelector('#card-{name} tbody')")
        shown = page.tab.locator(f"#card-{name} tbody tr").evaluate_all(
            "rows => rows.map(row => [...row.cells].map(cell => cell.textContent))"
        )
        for row, cells in zip(answer["rows"] + answer["base"], shown, strict=True):
            for column, cell in zip(answer["columns"], cells[1:], strict=True):
                value = row.get(column)
                if isinstance(value, float):
                    assert float(cell.replace(",", "").replace("−", "-")) == pytest.approx(value, rel=1e-3)
                elif value is not None and not isinstance(value, int):
                    assert cell == str(value)


def test_a_burst_of_moves_ends_at_the_newest_state(opened: Open) -> None:
    """One headline is in flight at a time, and what was overtaken is never asked for."""
    page = opened().settled()
    page.flying.clear()
    page.slide("L2 bandwidth", 35)
    page.slide("HBM bandwidth", -7)
    page.slide("L2 bandwidth", -4)
    page.expect({"l2": "3.1x", "hbm": "0.65x"})
    page.settled()
    assert page.state == {"l2": "3.1x", "hbm": "0.65x"}
    assert max(page.flying) == 1


def test_a_slow_answer_is_given_up_for_a_newer_question(opened: Open) -> None:
    page = opened().settled()
    page.tab.route("**/api/headline", lambda route: None)  # it is never answered
    page.slide("L2 bandwidth", 1)
    page.until("document.querySelector('#sentence.stale')")
    page.tab.unroute("**/api/headline")
    page.tab.wait_for_timeout(2_100)
    page.slide("L2 bandwidth", 1)
    page.expect({"l2": "1.1x"})
    page.settled()


def test_other_tiles_follow_after_a_pause(opened: Open) -> None:
    page = opened("gpu=a100-sxm4-80gb&smem=3x").settled()
    shipped = page.sentence
    page.tab.get_by_role("combobox", name="Tiles").select_option("retuned")
    found = page.expect({"gpu": "a100-sxm4-80gb", "smem": "3x", "tiles": "retuned"})
    page.settled()
    assert page.sentence == found != shipped


def test_an_address_brings_the_page_back(opened: Open) -> None:
    page = opened("gpu=a100-sxm4-80gb&heads=16&head_dim=64&seq=4096&mask=causal&sms=1.5x#tab=why").settled()
    said = page.sentence
    assert "a100-sxm4-80gb with sm.count" in said
    page.tab.reload()
    page.settled()
    assert page.sentence == said
    assert page.tab.get_by_role("tab", name="Why").get_attribute("aria-selected") == "true"
    assert page.tab.get_by_role("textbox", name="heads", exact=True).input_value() == "16"
    assert page.tab.get_by_role("slider", name="SMs").get_attribute("aria-valuetext") == "SMs 1.5 times, 162"


@pytest.mark.parametrize("query", ["l2=fast", "gpu=h10000", "sequence=3", "seq=-1", "lengths=x", "l2=2x&l2=oops"])
def test_a_bad_address_shows_one_line(opened: Open, query: str) -> None:
    page = opened(query)
    line = page.until("document.querySelector('#error').textContent")
    assert "\n" not in line and len(line) < 400
    page.tab.get_by_role("button", name="GPU as it is")
    assert page.tab.get_by_role("combobox", name="Base GPU").locator("option").count() > 10


def test_what_is_refused_is_said_beside_its_control(opened: Open) -> None:
    """The last good answer stays, greyed; a good value takes the line away."""
    page = opened("l2=2x").settled()
    good = page.sentence
    field = page.write("HBM bandwidth, multiple or value", "fast")
    page.until("document.querySelector('#wrong')")
    assert field.get_attribute("aria-invalid") == "true"
    assert "fast" in page.tab.locator(".figure + #wrong").inner_text()
    assert page.sentence == good
    assert "stale" in (page.tab.locator("#sentence").get_attribute("class") or "")
    page.write("HBM bandwidth, multiple or value", "1.5x")
    page.expect({"l2": "2x", "hbm": "1.5x"})
    assert page.tab.locator("#wrong").count() == 0


def test_the_keyboard_reaches_everything_and_everything_has_a_name(opened: Open) -> None:
    page = opened(QUERY).settled()
    page.tab.get_by_role("tab", name="Pictures").focus()
    for tab in (*TABS[1:], TABS[0]):
        page.tab.keyboard.press("ArrowRight")
        assert page.tab.evaluate("document.activeElement.textContent") == tab
        session = page.tab.context.new_cdp_session(page.tab)
        controls = [one for one in session.send("Accessibility.getFullAXTree")["nodes"] if not one["ignored"]]
        roles = ("slider", "textbox", "combobox", "button", "checkbox", "radio", "tab", "image", "tabpanel", "Iframe")
        nameless = [one for one in controls if one["role"]["value"] in roles and not one["name"]["value"]]
        assert nameless == []
    page.tab.locator("body").press("Home")
    page.tab.get_by_role("slider", name="exponentials").focus()
    page.tab.keyboard.press("Tab")
    assert page.tab.evaluate("document.activeElement.getAttribute('aria-label')") == "exponentials, multiple or value"


def test_hovering_lights_a_unit_in_every_picture(opened: Open) -> None:
    page = opened(QUERY).settled()
    page.tab.locator("#card-units rect[data-link=l2]").last.hover()
    for name in ("roofline", "units", "split"):
        lit = page.tab.locator(f"#card-{name} [data-link].lit")
        assert set(lit.evaluate_all("all => all.map(one => one.dataset.link)")) == {"l2"}, name
    page.tab.get_by_role("heading", name="attnsim").hover()
    assert page.tab.locator(".lit").count() == 0


def test_a_field_that_has_the_focus_fades_nothing(opened: Open) -> None:
    page = opened(QUERY).settled()
    for control in (
        page.tab.get_by_role("slider", name="L2 bandwidth"),
        page.tab.get_by_role("textbox", name="HBM bandwidth, multiple or value"),
        page.tab.get_by_role("combobox", name="Pass"),
    ):
        control.focus()
        page.tab.keyboard.press("Shift")
        assert page.tab.evaluate("document.activeElement.id || document.activeElement.ariaLabel")
        assert page.tab.locator(".lit").count() == 0
        faint = "[...document.querySelectorAll('.body [data-link]')].filter(one => getComputedStyle(one).opacity < 1)"
        assert page.tab.evaluate(f"{faint}.length") == 0


def test_sliders_have_tensor_parallelism_and_sizes_and_the_layer_follows(opened: Open, served: Served) -> None:
    page = opened("model=llama-3-8b&tp=1&seq=1024").settled()
    page.slide("TP, GPUs", 1)
    page.slide("shared memory size", 20)
    page.slide("L2 capacity", 20)
    state = {"model": "llama-3-8b", "tp": "2", "seq": "1024", "smem_size": "2x", "l2_size": "2x"}
    page.expect(state)
    page.settled()
    assert page.state == state
    assert page.tab.get_by_role("slider", name="TP, GPUs").get_attribute("aria-valuetext") == "2 GPUs share each layer"
    answer = served.api("picture", name="layer", state=state)
    assert page.tab.locator("#card-layer .alt").inner_text() == answer["alt"]
    bars = page.tab.locator("#card-layer svg [aria-label=bar]").last.locator("rect")
    assert bars.count() == len(answer["rows"])


def test_a_picture_is_copied_and_saved_as_the_command_line_has_it(opened: Open, served: Served, tmp_path: Path) -> None:
    page = opened(QUERY, permissions=["clipboard-read", "clipboard-write"]).settled()
    for kind in ("command", "Python", "BibTeX"):
        page.tab.get_by_role("button", name=f"Copy Busy time of each unit as {kind}").click()
        page.until("document.querySelector('#card-units .said').textContent.startsWith('copied')")
        said = served.api("said", name="units", state=TASK)[kind.lower()]
        assert page.tab.evaluate("navigator.clipboard.readText()") == said
        page.tab.evaluate("document.querySelector('#card-units .said').textContent = ''")
    for form in ("csv", "svg"):
        with page.tab.expect_download() as saving:
            page.tab.get_by_role("button", name=f"Save Busy time of each unit as {form.upper()}").click()
        assert saving.value.suggested_filename == f"units.{form}"
        assert Path(saving.value.path()).read_bytes() == served.export("units", form, TASK)


def test_ones_own_timings_are_held_against_predictions(opened: Open, served: Served) -> None:
    page = opened("#tab=mine")
    page.tab.get_by_label("Timings").set_input_files(MINE)
    page.until("document.querySelector('#card-mine svg')")
    answer = served.api("check", csv=MINE.read_text())
    assert page.tab.locator("#card-mine .alt").inner_text() == answer["alt"]
    assert page.tab.locator("#card-mine svg circle").count() == len(answer["rows"])
    with page.tab.expect_download() as saving:
        page.tab.get_by_role("button", name="Save Measured over predicted time as CSV").click()
    assert len(Path(saving.value.path()).read_text().splitlines()) == 1 + len(answer["rows"])
    page.tab.get_by_label("Which column is ours").fill("heads=nothing")
    page.tab.get_by_label("Which column is ours").press("Tab")
    page.until("document.querySelector('#card-mine .alt').textContent.includes('nothing')")
