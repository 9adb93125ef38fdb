"""What is compiled, and what of it is kept."""

from __future__ import annotations

from expr_cases import SINGLES
from penstock.expr.compiler import CODE_MOST, CODES_MOST, _kept_code, compile_tree, needs_of
from penstock.expr.grammar import parse


def test_what_a_value_needs_of_a_message_is_known_before_it_is_compiled() -> None:
    for text in SINGLES:
        tree = parse(text)
        assert needs_of(tree) == compile_tree(tree, "value", False).needs, text


def test_code_of_operands_is_kept_within_bounds() -> None:
    """Each filter had its own, and one of very long texts would be kept for ever."""
    _kept_code.cache_clear()
    made = [compile_tree(parse("/a"), "value", False) for _ in range(3)]
    assert (_kept_code.cache_info().misses, _kept_code.cache_info().hits) == (1, 2)
    assert len({one.run for one in made}) == 3, "names are each one's own"
    for number in range(CODES_MOST + 10):
        compile_tree(parse(f"/a = {number}"), "filter", False)
    assert _kept_code.cache_info().currsize == CODES_MOST
    _kept_code.cache_clear()
    compile_tree(parse(f"/a = '{'x' * CODE_MOST}'"), "filter", False)
    assert _kept_code.cache_info().currsize == 0
