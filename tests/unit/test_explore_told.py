"""A story's text in a notebook: chapters that fold, and nothing of them is lost."""

from __future__ import annotations

import re
from html import unescape

from paramgraph_kit.explore.told import folded

DIFF = """   --- <cell 2>
   +++ <cell 2> (not written)
   @@ -1,2 +1,3 @@
    def f(x):
   -    if x > 0:
   +    y = 1
   +    return
"""
SAID = [
    "1. step as it is, on simulated: a device",
    "   6 calls with inputs of their own: 6 values of results",
    "\n2. A capture of it",
    "   CUDA says      CUDA error: operation not permitted",
    "   which means    Python branched on a value that is on the GPU [data-dependent-branch]",
    "\n3. The fix, in your own words",
    DIFF + "     then   call after_f() after each launch\n     tried  eagerly",
    "\nThe story stops here: no safe rewrite is known",
]


def text_of(html: str) -> str:
    return unescape(re.sub(r"<[^>]+>", "", re.sub(r"<summary.*?</summary>", "", html)))


def test_chapters_fold_and_say_what_they_hold() -> None:
    # GIVEN what was said WHEN shown THEN each chapter is one line that says what matters
    html = folded(SAID, last=False)
    titles = [unescape(re.sub(r"<[^>]+>", "", each)) for each in re.findall(r"<summary.*?</summary>", html)]
    assert titles == [
        "1. step as it is, on simulated: a device 6 calls with inputs of their own: 6 values of results",
        "2. A capture of it which means Python branched on a value that is on the GPU [data-dependent-branch]",
        "3. The fix, in your own words lines: 1 go, 2 come · then call after_f() after each launch · tried eagerly",
    ]
    assert "<details open" not in html
    # AND nothing is lost, nor markup of the user's taken for ours
    for line in "\n".join(SAID[1:2] + SAID[3:5] + SAID[6:]).splitlines():
        assert line in text_of(html)
    assert "<cell" not in html


def test_the_end_is_seen_and_what_is_to_do_is_open() -> None:
    html = folded(SAID, last=True)
    # the last chapter alone is open, and what is said of a diff stands below it in a window of its own
    assert html.count("<details open") == 1
    diff, behind, end = re.findall(r"<pre.*?</pre>", html, re.DOTALL)[-3:]
    assert "+    y = 1" in text_of(diff)
    assert "then" not in diff
    assert text_of(behind).lstrip().startswith("then   call after_f()")
    assert html.index("</details>", html.index("3. The fix")) < html.index(end)
    assert "The story stops here" in end
    # AND lines have their colours where they are a diff's, and there alone
    assert re.findall(r'<span style="color:var\(--jp-success[^>]*>([^<]*)</span>', html) == [
        "   +++ &lt;cell 2&gt; (not written)", "   +    y = 1", "   +    return",
    ]  # fmt: skip


def test_a_story_that_ends_at_once_is_said() -> None:
    assert "raised" in text_of(folded(["it raised something"], last=True))
    assert folded([], last=False) == "<div></div>"
