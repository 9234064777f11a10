"""The scripts of the pages, in a headless browser."""

import pytest

from portico.mrc.report import Candidate
from portico.mrc.report.run_page import run_page
from portico.report.sweep_page import sweep_page
from report_pages import (
    BROWSER,
    CONTEXT,
    HISTORY,
    HOSTILE,
    RESULTS,
    comparison_page,
    record,
    result,
    summary,
    with_script,
)
from report_pages import browse as browse_address

if BROWSER is None:
    pytest.skip(
        "the scripts of the report are not tested: no chromium or google-chrome on the PATH", allow_module_level=True
    )

TOOLS = """
const all = (selector) => [...document.querySelectorAll(selector)];
const one = (selector) => document.querySelector(selector);
const tell = (selector, event) => one(selector).dispatchEvent(new Event(event));
const press = (key, target = document.body) =>
  target.dispatchEvent(new KeyboardEvent("keydown", { key, bubbles: true, cancelable: true }));
const pause = () => new Promise((done) => setTimeout(done, 100));
const asked = () => one(".detail .asked").textContent;
const answered = () => one(".detail dd:last-of-type").firstElementChild.textContent;
const listed = () => all(".row").map((row) => row.querySelector(".asked").textContent);
const count = () => one(".matches").textContent;
const type = (text) => { one("input[type=search]").value = text; tell("input[type=search]", "input"); };
// A browser's window is at least 500 wide, a frame is not.
const framed = async (width) => {
  const frame = document.createElement("iframe");
  const copy = document.documentElement.cloneNode(true);
  copy.querySelector("#driver").remove();
  for (const button of copy.querySelectorAll(".copy")) button.remove();
  frame.style.cssText = `width:${width}px;height:800px`;
  frame.srcdoc = copy.outerHTML;
  document.body.append(frame);
  await new Promise((done) => frame.addEventListener("load", () => setTimeout(done, 100)));
  return frame;
};
const choose = (selector, value) => { one(selector).value = value; tell(selector, "change"); };
"""


@pytest.fixture(scope="module")
def browse(tmp_path_factory):
    """Return a function that opens a page, runs a script in it and returns what the script returns."""
    folder = tmp_path_factory.mktemp("browser")

    def run(page, script, *, address="", dark=False):
        path = folder / "page.html"
        path.write_text(with_script(page, script, tools=TOOLS), encoding="utf-8")
        options = ["--blink-settings=preferredColorScheme=0"] if dark else []
        return browse_address(f"file://{path}{address}", folder / "profile", *options)

    return run


MANY = [
    result(
        number,
        question=f"Where, {number}?",
        predicted="Turku" if number % 2 else "1901",
        context=f"{CONTEXT} {number // 4}",
        probability=number / 400,
    )
    for number in range(400)
]


def test_keys_move_through_the_list(browse):
    script = """
    const seen = [asked()];
    press("j"); press("j"); seen.push(asked());
    press("k"); seen.push(asked());
    const list = one(".list");
    press("End", list); seen.push(asked());
    press("j"); seen.push(asked());
    press("Home", list); press("ArrowUp", list); seen.push(asked());
    press("PageDown", list); press("ArrowDown", list); seen.push(asked());
    press("/"); seen.push(document.activeElement.type);
    press("j", one("input[type=search]")); seen.push(asked());
    return [seen, location.hash, all(".row").length, list.getAttribute("aria-activedescendant"),
      one("[aria-selected=true] .asked").textContent, one(".row").getAttribute("aria-setsize")];
    """
    seen, address, num_rows, active, chosen, size = browse(run_page(record(MANY)), script)
    # Wrong ones first, the most confident first among equals.
    order = [*range(398, -1, -2), *range(399, 0, -2)]
    names = [f"Where, {number}?" for number in order]
    assert seen[:6] == [names[0], names[2], names[1], names[-1], names[-1], names[0]]
    moved = names.index(seen[6])
    assert 3 < moved < 15
    assert seen[7:] == ["search", seen[6]]
    assert (address, active, chosen, size) == (f"#q=q{order[moved]}", f"row-{order[moved]}", seen[6], "400")
    assert num_rows < 60


def test_scrolling_draws_the_visible_rows(browse):
    script = """
    one(".list").scrollTop = 64 * 200;
    tell(".list", "scroll");
    return listed();
    """
    assert "Where, 399?" in browse(run_page(record(MANY)), script)  # the 201st


def test_filters_search_groups_and_order(browse):
    script = """
    const seen = [count()];
    const [wrong, falseNoAnswer] = ["wrong-span", "false-no-answer"].map((name) => one(`.filters .${name}`));
    wrong.click(); seen.push(count(), listed());
    falseNoAnswer.click(); seen.push(listed());
    wrong.click(); falseNoAnswer.click();
    type("TORNIO 0? "); seen.push(listed());
    type("zo\\u00eb \\u062a\\u0648\\u0631\\u06a9\\u0648 2?"); seen.push(listed());
    type("nowhere at all"); seen.push([count(), listed(), all(".detail *").length]);
    type("");
    choose(".group", "3.no answer"); seen.push(listed());
    choose(".group", ""); choose(".order", "given"); seen.push(listed());
    choose(".order", "sure"); seen.push(listed()[0]);
    return seen;
    """
    results = [
        result(number, **{**answers, "question": f"In Tornio {number}?"})
        for number, answers in enumerate(
            [
                {},
                {"predicted": "1901"},
                {"predicted": ""},
                {"gold": "", "predicted": "", "probability": 0.99},
            ]
        )
    ]
    seen = browse(run_page(record(results)), script)
    names = [f"In Tornio {number}?" for number in range(4)]
    assert seen == [
        "4 questions",
        "1 of 4 questions",
        [names[1]],
        [names[1], names[2]],
        [names[0]],
        [names[2]],
        ["0 of 4 questions", [], 0],
        [names[3]],
        names,
        names[3],
    ]


def test_an_address_leads_to_a_question_and_to_a_group(browse):
    odd = [*RESULTS, result(7, id="a/\u00e4?&#", question="This one?")]
    script = """
    const seen = [asked(), one("#questions").getBoundingClientRect().top < 100];
    one(".filters button").click();
    location.hash = "#q=q4";
    await pause();
    seen.push(answered(), count());
    const link = all("#breakdown a").find((link) => link.textContent === "no answer");
    link.click();
    await pause();
    seen.push(count(), one(".group").selectedOptions[0].textContent);
    location.hash = "#q=nothing";
    await pause();
    seen.push(count());
    return seen;
    """
    seen = browse(run_page(record(odd)), script, address="#q=a%2F%C3%A4%3F%26%23")
    assert seen == ["This one?", True, "1901", "7 questions", "2 of 7 questions", "no answer", "7 questions"]


def marks_of(page, browse):
    script = """
    return [one(".passage").textContent, all(".passage mark").map((mark) => [mark.textContent, mark.className]),
      one(".passage").dir, all(".detail script, .detail img").length];
    """
    return browse(page, script)


def test_spans_are_marked_in_the_passage(browse):
    golds = (("Turku", CONTEXT.index("Turku")), ("in Turku", CONTEXT.index("in Turku")))
    text = f"{CONTEXT} e\u0301 <b>&amp;</b>"
    passage, marks, direction, num_elements = marks_of(
        run_page(record([result(golds=golds, predicted="Turku, تو", f1=0.5, context=text, question=HOSTILE)])), browse
    )
    assert passage == text
    assert marks == [["in ", "gold"], ["Turku", "gold predicted"], [", تو", "predicted"]]
    assert (direction, num_elements) == ("auto", 0)


def test_both_answers_are_marked_in_a_comparison(browse):
    first, second = record([result(predicted="in Turku", f1=0.67)], name="a"), record([result()], name="b")
    _, marks, _, _ = marks_of(comparison_page(first, second), browse)
    assert marks == [["in ", "predicted"], ["Turku", "gold predicted second"]]


def test_answers_of_several_runs_are_told_apart(browse):
    runs = [record([result(predicted=text, f1=0.5)], name=text) for text in ("in Turku", "1901", "Turku")]
    script = """
    const marks = all(".passage mark").map((mark) => [mark.textContent, mark.className, mark.title]);
    return [marks, all(".detail dt").map((term) => term.textContent)];
    """
    marks, terms = browse(comparison_page(*runs), script)
    assert marks == [
        ["in ", "predicted", "answered by in Turku"],
        ["Turku", "gold predicted second", "expected, answered by in Turku, answered by Turku"],
        ["1901", "second", "answered by 1901"],
    ]
    assert terms == ["expected", "in Turku", "1901", "Turku"]


def test_long_passages_are_folded_until_clicked(browse):
    script = """
    const folds = all(".fold").map((fold) => fold.textContent);
    const short = one(".passage").textContent.length;
    all(".fold").forEach((fold) => fold.click());
    return [folds, short < 2500, one(".passage").textContent, all(".passage mark").length];
    """
    context = f"{'a' * 3000}Turku{'b' * 5000}1901{'c' * 2000}"
    page = run_page(record([result(context=context, predicted="1901")]))
    folds = ["show 2,600 characters", "show 4,200 characters", "show 1,600 characters"]
    assert browse(page, script) == [folds, True, context, 2]


def test_candidates_are_listed_with_their_scores(browse):
    script = 'return all(".candidates tbody tr").map((row) => [...row.cells].map((cell) => cell.textContent));'
    candidates = (Candidate("Turku <b>", 0.75, 3.456), Candidate("", 0.25, None))
    page = run_page(record([result(nbest=candidates)]))
    assert browse(page, script) == [["Turku <b>", "", "75.0%", "3.46"], ["no answer", "", "25.0%", ""]]


def test_charts_can_be_read_with_the_keys(browse):
    script = """
    const plot = one("#learning .plot");
    plot.focus();
    const seen = [plot.getAttribute("aria-valuetext")];
    press("ArrowLeft", plot); seen.push(plot.getAttribute("aria-valuetext"));
    press("Home", plot); press("ArrowLeft", plot);
    return [...seen, plot.getAttribute("aria-valuenow"), plot.getAttribute("role")];
    """
    assert browse(run_page(record(log_history=HISTORY)), script) == [
        "step 20, training 1, evaluation 1.5",
        "step 10, training 2",
        "10",
        "slider",
    ]


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_colours_follow_the_system_and_the_reader(browse, dark):
    script = """
    const paper = () => getComputedStyle(document.body).backgroundColor;
    const seen = [paper()];
    for (const value of ["dark", "light", "auto"]) { one(`.theme [value=${value}]`).click(); seen.push(paper()); }
    return [...seen, one(".theme").hidden];
    """
    light, night = "rgb(250, 249, 246)", "rgb(22, 24, 27)"
    own = night if dark else light
    assert browse(run_page(record()), script, dark=dark) == [own, night, light, own, False]


@pytest.mark.parametrize("page", ["run", "two", "several"])
def test_nothing_overflows_or_is_cut_off(browse, page):
    script = """
    const seen = [];
    for (const width of [390, 1280]) {
      const frame = await framed(width);
      const inner = frame.contentDocument;
      const room = inner.documentElement.clientWidth;
      const isWide = (element) => element.getBoundingClientRect().right > room && !element.closest(".wide, nav");
      const name = (element) => `${width}: ${element.tagName} ${element.className} ${element.textContent}`;
      const wide = [...inner.querySelectorAll("body *")].filter(isWide);
      seen.push(inner.documentElement.scrollWidth - room, ...wide.map(name));
      // A table that scrolls in its box hides its last columns.
      const tables = [...inner.querySelectorAll(".wide")].filter((box) => !box.closest("details, .explorer"));
      seen.push(tables.length, ...tables.filter((box) => box.scrollWidth > box.clientWidth).map(name));
      frame.remove();
    }
    return seen;
    """
    first = record(RESULTS * 20, log_history=HISTORY, settings={"args": {"x" * 60: "y" * 80}})
    others = [
        [result(number) if number < rights else RESULTS[number] for number in range(6)] * 20 for rights in (4, 5)
    ]
    second, third = (record(results, name=f"/runs/{'z' * 40}-{place}") for place, results in enumerate(others))
    pages = {"run": [first], "two": [first, second], "several": [first, second, third]}
    html_page = run_page(first) if page == "run" else comparison_page(*pages[page])
    num_tables = {"run": 4, "two": 5, "several": 6}[page]
    assert browse(html_page, script) == [0, num_tables, 0, num_tables]


def test_names_of_the_axes_of_a_sweep_are_whole_on_a_phone(browse):
    script = """
    const inner = (await framed(390)).contentDocument;
    const box = inner.querySelector(".parallel").getBoundingClientRect();
    const names = [...inner.querySelectorAll(".parallel .name")];
    const places = names.map((name) => name.getBoundingClientRect());
    return [names.length, places.every((one) => one.left >= box.left && one.right <= box.right)];
    """
    assert browse(sweep_page(summary()), script) == [3, True]


def test_the_figures_of_a_sweep_stand_in_line(browse):
    script = 'return [...document.querySelectorAll(".tiles dt")].map((label) => label.getBoundingClientRect().top)'
    tops = browse(sweep_page(summary()), script)
    assert len(tops) == 4
    assert len(set(tops)) == 1


def test_tables_and_questions_are_copied_as_csv(browse):
    script = """
    const copied = [];
    Object.defineProperty(navigator, "clipboard", { value: { writeText: async (text) => copied.push(text) } });
    one("#breakdown .copy").click();
    type("Why");
    one(".state .copy").click();
    await pause();
    return [copied, one(".state .copy").textContent];
    """
    odd = result(7, question='=HYPERLINK("x")', title="Why", predicted="", golds=(("Turku", 0), ("a, b", -1)))
    copied, label = browse(run_page(record([*RESULTS, odd, result(8)])), script)
    table, questions = (text.split("\r\n") for text in copied)
    assert table[0] == "word,questions,F1,F1 low,F1 high,exact,exact low,exact high"
    name, count, f1, low, high, *_ = table[1].split(",")
    assert (name, count, f1) == ("where", "7", "52.4")
    assert float(low) < float(f1) < float(high)
    assert questions == [
        "id,kind,question,expected,answer,F1,probability",
        'q7,false no-answer,"\'=HYPERLINK(""x"")","Turku | a, b",,0,0.9',
        "",
    ]
    assert label == "Copied"


def test_an_address_leads_to_a_slice_and_the_page_gives_it(browse):
    script = """
    const seen = [one(".slice").hidden];
    all(".share-legend a").find((link) => link.textContent === "wrong span").click();
    await pause();
    seen.push(listed(), count());
    choose(".group", "0.where"); type("tornio & 100%");
    seen.push(one(".slice").getAttribute("href"), count());
    one(".slice").click();
    await pause();
    return [...seen, count(), one("input[type=search]").value, one(".group").value];
    """
    wrong = result(7, predicted="1901", question="Where is Tornio & 100%?")
    hidden, names, shown, address, *after = browse(run_page(record([*RESULTS, wrong])), script)
    assert (hidden, names, shown) == (True, ["Where was Zoë born?", wrong.question], "2 of 7 questions")
    assert address == "#g=0.where&k=1&s=tornio%20%26%20100%25"
    assert after == ["1 of 7 questions", "1 of 7 questions", "tornio & 100%", "0.where"]


def test_every_control_is_reachable_by_the_tab_key(browse):
    script = """
    const reacting = all("button, input, select, a, summary, [role=slider], [role=listbox]");
    const named = (element) => element.ariaLabel || element.textContent.trim() || element.labels?.length
      || element.getAttribute("aria-valuetext");
    return [reacting.filter((element) => element.tabIndex !== 0).map((element) => element.outerHTML),
      reacting.filter((element) => !named(element)).map((element) => element.outerHTML), one("a").className];
    """
    assert browse(run_page(record(log_history=HISTORY)), script) == [[], [], "skip"]


def test_runs_of_a_sweep_are_sorted_and_chosen(browse):
    script = """
    const runs = () => all(".jobs tbody tr").filter((row) => !row.hidden).map((row) => row.dataset.run).join("");
    const click = (column) => all(".jobs thead button")[column].click();
    const seen = [runs()];
    click(2); seen.push(runs());
    click(2); seen.push(runs());
    click(4); seen.push(runs());
    click(1); seen.push(runs());
    choose("#runs select", "pruned"); tell("#runs .fields", "input"); seen.push(runs(), count());
    choose("#runs select", ""); type("INPUTERROR"); tell("#runs .fields", "input"); seen.push(runs());
    return [...seen, all("[aria-sort]").map((head) => head.textContent), one(".command .copy").textContent];
    """
    # By score, ascending and descending with the failed run last; by model; by state; the pruned; by a text.
    assert browse(sweep_page(summary()), script) == [
        *("0123", "1023", "2013", "0123", "3021", "1", "1 of 4 runs", "3", ["state"], "Copy"),
    ]


def test_pointing_at_a_run_follows_it_through_the_page_of_a_sweep(browse):
    script = """
    const chosen = () => all(".chosen").map((part) => part.localName + part.dataset.run);
    const seen = [chosen(), one(".runs .readout").textContent];
    one(".runs [data-run='2']").dispatchEvent(new PointerEvent("pointerenter"));
    seen.push(chosen(), all(".runs .readout").map((line) => line.textContent), all(".following").length);
    one(".runs [data-run='2']").dispatchEvent(new PointerEvent("pointerleave", { pointerType: "mouse" }));
    seen.push(chosen());
    one("tr[data-run='3'] a").focus(); seen.push(chosen());
    seen.push(one("tr.best a").getAttribute("href"), document.documentElement.scrollWidth <= innerWidth);
    return seen;
    """
    before, empty, during, readouts, following, after, focused, link, fits = browse(sweep_page(summary()), script)
    assert (before, after) == ([], [])
    assert empty.startswith("Point at a line")
    assert during == ["g2", "g2", "g2", "tr2"]
    assert readouts == ["run 2: eval_f1 81.5, learning_rate 0.001, model b"] * 3
    assert following == 3
    assert focused == ["tr3"]
    assert link == "2/report.html"
    assert fits
