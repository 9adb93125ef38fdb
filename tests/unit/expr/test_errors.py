"""Expressions that cannot be read: what is said, and where the caret stands."""

from __future__ import annotations

import traceback

import pytest

from penstock import errors, expr
from penstock.expr.check import COST_LIMIT
from penstock.expr.grammar import DEPTH_LIMIT, TEXT_LIMIT


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("", 0, "empty"),
        ("   ", 0, "empty"),
        ("1 +", 3, "ends where"),
        ("/a = ", 4, "ends where"),
        ("/a = = 1", 5, "cannot stand here"),
        ("/a 5", 3, "expected an operator"),
        ("/a = 1 == 2", 7, "do not chain"),
        ("/ a", 0, "without a blank"),
        ("1 = / a", 4, "without a blank"),
        ("'abc", 0, "no end"),
        ("/a = \"abc'", 5, "no end"),
        ("/a LIKE 5", 8, "expected a string"),
        ("/a LIKE /b", 8, "expected a string"),
        ("/a IN 5", 6, "expected '('"),
        ("/a IN ()", 7, "cannot stand here"),
        ("(1", 2, "ends where"),
        ("1)", 1, "expected"),
        ("1 = 1 $", 6, "'$'"),
        ("$", 0, "'$'"),
        ("/a IS 5", 6, "NULL"),
        ("/a NOT = 5", 7, "LIKE"),
        ("x", 0, "a field begins with '/'"),
        ("/a /b", 4, "a field begins with '/'"),
        ("/a = b AND 1 = 1", 5, "'b' is no function call"),
        ("/a IN", 5, "'('"),
        ("/a[5", 2, "'['"),
        ("/a[12345678901]", 3, "9 digits"),
        ("[//a]", 0, "empty"),
        ("/@headers = 1", 0, "must follow /@headers/"),
        ("/@properties/colour = 1", 0, "content_type"),
        ("1 + 1e999", 4, "too large"),
        ("1 = FOO(1)", 4, "no function FOO"),
        ("UPER('x')", 0, "did you mean 'UPPER'"),
        ("1 = UPPER('a', 'b')", 4, "takes 1 argument, 2 were given"),
        ("SUBSTR('a')", 0, "takes 2 to 3 arguments, 1 was given"),
        ("CONCAT()", 0, "1 or more arguments"),
        ("UNIX_TIMESTAMP(1)", 0, "no argument"),
        ("SUM(/a) > 1", 0, "many messages"),
        ("SOW_KEY() = 'x'", 0, "more than the message"),
        ("REGEXP_REPLACE('a', /p, 'b')", 20, "literal"),
        ("/a LIKE '(?=x)'", 8, "look-ahead"),
        ("/a LIKE r'ab(?!x)'", 12, "negative look-ahead"),
        ("/a LIKE r'(a)\\1'", 13, "back-reference \\1"),
        ("/a LIKE r'a++'", 11, "possessive quantifier ++"),
        ("/a LIKE 'C\\+\\+'", 8, "write r'...'"),
        ("/a LIKE '('", 8, "cannot be used"),
        ("/a = 1 AND\n  /b ~ 2", 16, "'~'"),
    ],
)
def test_place(text: str, place: int, said: str) -> None:
    with pytest.raises(errors.ExpressionError) as caught:
        expr.compile_filter(text)
    assert (caught.value.place, caught.value.text) == (place, text)
    assert said in str(caught.value)


def test_the_caret_stands_under_the_offending_character() -> None:
    with pytest.raises(errors.ExpressionError) as caught:
        expr.compile_filter("/a = 1 AND\n  /b ~ 2 AND\n/c = 3")
    assert caught.value.pointed().splitlines()[1:] == ["    /b ~ 2 AND", "       ^"]


def test_a_traceback_shows_the_expression() -> None:
    with pytest.raises(errors.ExpressionError) as caught:
        expr.compile_filter("/n >")
    assert traceback.format_exception_only(caught.value)[1:] == ["  /n >\n", "      ^\n"]


@pytest.mark.parametrize(
    "text", ["1+" * 20_000 + "1", "/a > " + "1 + " * 20 + "* 5 AND " + "1 + " * 40 + "1", "1 + " * 40 + "*"]
)
def test_of_a_long_expression_the_surroundings_are_shown(text: str) -> None:
    with pytest.raises(errors.ExpressionError) as caught:
        expr.compile_filter(text)
    _, line, caret = caught.value.pointed().splitlines()
    assert len(line) <= 2 * errors.AROUND + 8
    if caught.value.place < len(text):
        assert line[caret.index("^")] == text[caught.value.place]


def test_what_should_follow_is_in_the_signs_of_the_language() -> None:
    with pytest.raises(errors.ExpressionError, match="'[+]' or '-' or AND should follow"):
        expr.compile_filter("/a BETWEEN 1")


def test_budgets() -> None:
    def refused(text: str) -> str:
        with pytest.raises(errors.ExpressionError) as caught:
            expr.compile_filter(text)
        return str(caught.value)

    assert "characters" in refused("1" * (TEXT_LIMIT + 1))
    assert "levels deep" in refused("ABS(" * (DEPTH_LIMIT + 1) + "1" + ")" * (DEPTH_LIMIT + 1))
    assert "levels deep" in refused("+".join("1" * (DEPTH_LIMIT + 2)))
    assert "too large" in refused(" OR ".join(["/a = 1"] * (COST_LIMIT // 2)))
    assert "too large" in refused(" OR ".join(["REGEXP_REPLACE(/a, 'b', 'c') = 1"] * 20))
    assert "too large" in refused(" OR ".join(["/a LIKE 'x'"] * 400))
    assert "1000 are allowed" in refused(f"/a LIKE '{'x' * 1001}'")
    assert "cannot be used" in refused("/a LIKE '((a{100}){100}){100}'")


@pytest.mark.parametrize(
    "nest",
    [
        lambda text: f"ABS({text})",
        lambda text: f"-({text})",
        lambda text: f"NOT ({text})",
        lambda text: f"(1 = 1 AND ({text} = 1 OR 2 = 3))",
        lambda text: f"IF({text}, {text if len(text) < 50 else 1}, 2)",
        lambda text: f"({text}) BETWEEN 1 AND 2",
        lambda text: f"({text}) IN (1, {text if len(text) < 50 else 1})",
        lambda text: f"({text}) LIKE 'x'",
        lambda text: f"1 BETWEEN 0 AND ({text})",
        lambda text: f"2 = ({text})",
        lambda text: f"/a = ({text})",
    ],
)
def test_the_deepest_tree_compiles(nest: object) -> None:
    assert callable(nest)
    text = "/a"
    while True:
        following = nest(text)
        try:
            tree = expr.parse(following)
        except errors.ExpressionError:
            break
        text = following
        assert tree.depth <= DEPTH_LIMIT
    expr.compile_filter(text).matches([b'{"a":1}'])
    expr.evaluate(text, [b'{"a":1}'])


def test_parentheses_alone_are_no_depth() -> None:
    assert expr.evaluate("(" * 5000 + "1" + ")" * 5000, [b""]) == [1]


def test_an_unknown_backend() -> None:
    with pytest.raises(errors.InvalidArgument, match="no expression backend 'cobol'"):
        expr.evaluate("1", [b""], backend="cobol")


def test_names_and_texts_never_become_code() -> None:
    nasty = "x') or __import__('os').abort() or ('"
    body = b'{"a":1}'
    assert expr.evaluate(f"[/{nasty}] IS NULL", [body]) == [True]
    assert expr.evaluate(f'/a = "{nasty}"', [body]) == [False]
    assert expr.evaluate('"\\\\\\n{0}\\x00" LIKE "0"', [body]) == [True]
