"""Names of segments: which are taken."""

from __future__ import annotations

import unicodedata

from hypothesis import example, given
from hypothesis import strategies as st

from segmentstore.contracts.segments import NAME_BYTES_MAX, may_name_a_segment


@given(
    st.one_of(
        st.text(st.characters(max_codepoint=0x9F), max_size=5),
        st.text(st.characters(), max_size=5),
        st.text(st.sampled_from("aé"), min_size=NAME_BYTES_MAX - 2, max_size=NAME_BYTES_MAX + 1),
    )
)
@example("\x7f")
@example("a" * NAME_BYTES_MAX)
@example("a" * (NAME_BYTES_MAX + 1))
@example("\ud800")
def test_a_name_has_some_bytes_of_utf8_and_no_control_characters(name: str) -> None:
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        size = 0
    controls = [each for each in name if unicodedata.category(each) == "Cc"]
    assert may_name_a_segment(name) == (1 <= size <= NAME_BYTES_MAX and not controls)
