"""llama.cpp's notation: texts that its own sample grammars allow, and those that they do not."""

from __future__ import annotations

import re

import pytest

from headway.core.errors import GrammarError
from headway.core.plan import Grammar
from headway.text.grammar.gbnf import is_gbnf, lark_of
from schema_machine import lets_through, matcher

JSON = r"""root   ::= object
value  ::= object | array | string | number | ("true" | "false" | "null") ws

object ::=
  "{" ws (
            string ":" ws value
    ("," ws string ":" ws value)*
  )? "}" ws

array  ::=
  "[" ws (
            value
    ("," ws value)*
  )? "]" ws

string ::=
  "\"" (
    [^"\\\x7F\x00-\x1F] |
    "\\" (["\\bfnrt] | "u" [0-9a-fA-F]{4}) # escapes
  )* "\"" ws

number ::= ("-"? ([0-9] | [1-9] [0-9]{0,15})) ("." [0-9]+)? ([eE] [-+]? [0-9] [1-9]{0,15})? ws

# Optional space: by convention, applied in this grammar after literal chars when allowed
ws ::= | " " | "\n" [ \t]{0,20}
"""
ARITHMETIC = r"""root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""
JAPANESE = """root        ::= jp-char+ ([ \\t\\n] jp-char+)*
jp-char     ::= hiragana | katakana | punctuation | cjk
hiragana    ::= [ぁ-ゟ]
katakana    ::= [ァ-ヿ]
punctuation ::= [、-〾]
cjk         ::= [一-鿿]
"""
CHESS = r"""root   ::= "1. " move " " move "\n" ([1-9] [0-9]? ". " move " " move "\n")+
move   ::= (pawn | nonpawn | castle) [+#]?

# piece type, optional file/rank, optional capture, dest file & rank
nonpawn ::= [NBKQR] [a-h]? [1-8]? "x"? [a-h] [1-8]
pawn   ::= ([a-h] "x")? [a-h] [1-8] ("=" [NBKQR])?
castle ::= "O-O" "-O"?
"""


@pytest.mark.parametrize(("grammar", "good", "bad"), [
    (JSON, ['{"a": [1, -2.5e3, "x\\u00e9"]}', "{}", '{"t": true }'], ['{"a"}', "[1]", '{"a": tru}', ""]),
    (ARITHMETIC, ["(1+x)*2= 5\n", "a=b\nc =d\n"], ["1+=2\n", "1=2"]),
    (JAPANESE, ["ひらカ漢", "漢 字"], ["abc", "ひ "]),
    (CHESS, ["1. e4 e5\n2. Nf3 O-O-O+\n"], ["1. e9 e5\n2. a1 a2\n", "1. e4 e5\n"]),
    # a keyword may begin a name: no word is longer than a character
    ('root ::= ("if" | [a-z]+) "!"', ["if!", "i!", "ifx!", "fi!"], ["!", "if"]),
    ('root ::= "\\u0041" [\\u0042-\\u0043] "\\x44" "\\U0001F600"', ["ABD😀", "ACD😀"], ["AAD😀", "ABD"]),
    ('root ::= "a" . "b"', ["axb", "a\nb", "aéb"], ["ab"]),
    ('root ::= Foo foo fooBar foo_bar foo-bar\nFoo ::= "A"\nfoo ::= "b"\nfooBar ::= "c"\nfoo_bar ::= "d"\n'
     'foo-bar ::= "e"', ["Abcde"], ["abcde"]),
    ('root ::= start\nstart ::= "x"', ["x"], ["start"]),
    ('root ::= "a"\n  | "b"\n  | "c" # end', ["a", "b", "c"], ["d", "ab"]),
    ('root ::= "a" b\nb ::= | "c"', ["a", "ac"], ["c"]),
    ('root ::= "(" root ")" | "x"', ["x", "((x))"], ["(x"]),
    ('root ::= "ab"{2} [0-9]{,2} "c"{1,} "d"{0,1}', ["ababc", "abab12ccd"], ["abc", "abab123c", "ababcdd"]),
    ('root ::= [a&&b] [--/] [a~~b] [a^b] [^^] [[\\]] [-a]', ["&-~^x[-", "b/b^a]a"], ["c-~^x[-", "&-~^^[-"]),
    ('root ::= "#" ["\'] "a/b" [/] "\\t" "\\\\" "\\""\r\n', ["#\"a/b/\t\\\"", "#'a/b/\t\\\""], ["#a/b/"]),
])  # fmt: skip
def test_a_grammar_lets_through_what_it_says(grammar: str, good: list[str], bad: list[str]) -> None:
    assert is_gbnf(grammar)
    start = matcher(Grammar("gbnf", grammar))
    assert [text for text in good if not lets_through(start, text)] == []
    assert [text for text in bad if lets_through(start, text)] == []


@pytest.mark.parametrize(("grammar", "message"), [
    ('root ::= "a', "line 1: '\"a' is not valid GBNF"),
    ('root ::= "a"\n\nx ::= \'b\'', "line 3: \"'b'\" is not valid GBNF"),
    ('root ::= item', "line 1: there is no rule named item"),
    ('main ::= "a"', "there is no rule named root"),
    ('root ::= "a"\nroot ::= "b"', "a rule is defined twice"),
    ('"a" root ::= "b"', "it must start with a rule"),
    ('root ::= ("a"\nb ::= "c"', "line 2: a bracket before it is not closed"),
    ('root ::= "a")', "line 1: unmatched closing bracket"),
    ('root ::= * "a"', r"line 1: \* has nothing before it to repeat"),
    ('root ::= "a" | {3}', "has nothing before it to repeat"),
    ('root ::= "a"{0}', r"line 1: \{0\} repeats nothing"),
    ('root ::= "a"{3,2}', "must be one or two numbers"),
    ('root ::= "a"{99999999}', "up to 10000"),
    ('root ::= [z-a]', "line 1: the range z-a is empty"),
    ('root ::= []', "an empty character class"),
    ('root ::= "\\uD800"', "is not a character"),
    ('root ::= <|im_end|>', "is not valid GBNF"),
])  # fmt: skip
def test_what_is_no_grammar_is_refused_with_its_line(grammar: str, message: str) -> None:
    with pytest.raises(GrammarError, match=message):
        matcher(Grammar("gbnf", grammar))


def test_what_the_notation_is_not_is_left_alone() -> None:
    for lark in ('start: "root ::= x"', "start: /a ::= b/", "// x\nstart: a"):
        assert not is_gbnf(lark)
    with pytest.raises(GrammarError):
        lark_of("")


def test_a_large_grammar_is_said_in_time_that_grows_with_it() -> None:
    rules = "\n".join(f'rule-{i} ::= "literal {i}" [a-z0-9]{{2,3}} rule-{i + 1}' for i in range(4000))
    lark = lark_of(f'root ::= rule-0\n{rules}\nrule-4000 ::= "end"')
    assert len(re.findall("^rule_", lark, re.MULTILINE)) == 4001
