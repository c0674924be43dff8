"""A shell command is read as a shell would: what is quoted is data, what starts something is seen through."""

import shlex
import time

import pytest
from hypothesis import given, strategies as st

from tandem.plugins.rules._runs import path_of, runs
from tandem.plugins.rules._shell import parse


def commands(text: str) -> list[list[str]]:
    return [
        [word.text for word in command.words] for pipeline in parse(text).pipelines for command in pipeline.commands
    ]


def programs(text: str) -> list[str]:
    return [run.text for run in runs(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("ls -l", [["ls", "-l"]]),
        ("a; b && c || d & e\nf", [["a"], ["b"], ["c"], ["d"], ["e"], ["f"]]),
        ("a 'b; c' \"d | e\" f\\ g", [["a", "b; c", "d | e", "f g"]]),
        ('echo "a \\"b\\" \\x"', [["echo", 'a "b" \\x']]),
        ("a # b; c\nd", [["a"], ["d"]]),
        ("a b#c", [["a", "b#c"]]),
        ("A=1 B='2 3' run x", [["run", "x"]]),
        ("if a; then b; else c; fi", [["a"], ["b"], ["c"]]),
        ("for x in a b; do run; done", [["run"]]),
        ("while true; do a; done", [["true"], ["a"]]),
        ("case $x in a) b;; *) c;; esac", [["b"], ["c"]]),
        ("f() { a; }; function g { b; }", [["a"], ["b"]]),
        ("(a; b)", [["a"], ["b"]]),
        ("{ a; b; }", [["a"], ["b"]]),
        ("echo $(a b) `c d`", [["a", "b"], ["c", "d"], ["echo", "", ""]]),
        ('echo "x $(a "b c") y"', [["a", "b c"], ["echo", "x  y"]]),
        ("a \\\n b", [["a", "b"]]),
        ("cat <<E\nrm x; $(y)\nE\nb", [["cat"], ["b"]]),
        ("cat <<-'E' | b\n\tx\n\tE\nc", [["cat"], ["b"], ["c"]]),
        ("X=/a; Y=$X/b; run $Y \"${Y}\" '$Y'", [["run", "/a/b", "/a/b", "$Y"]]),
        ("(X=1); run $X", [["run", ""]]),
        ("a 2>&1 >b <c", [["a"]]),
        ("$((1 + 2)) x", [["", "x"]]),
        ("", []),
        ("'unclosed", [["unclosed"]]),
        ('"unclosed', [["unclosed"]]),
        ("a $(b", [["b"], ["a", ""]]),
        ("a <<E\nb", [["a"]]),
        ("a\\", [["a"]]),
        (")(;;&&||", []),
    ],
)
def test_a_text_is_read_into_its_commands(text, expected):
    assert commands(text) == expected


def test_redirections_tell_what_is_written_and_what_is_a_descriptor():
    (pipeline,) = parse("a 2>&1 >out 2>>err &>both <in >&3 3>&- 4<>rw >| forced").pipelines
    told = [(one.operator, one.target.text, one.writes) for one in pipeline.commands[0].redirects]
    assert told == [
        (">", "out", True),
        (">>", "err", True),
        ("&>", "both", True),
        ("<", "in", False),
        ("<>", "rw", True),
        (">|", "forced", True),
    ]


def test_here_documents_are_the_input_of_their_command():
    (first, second) = parse("cat <<A <<'B' > x\n1\nA\n2\n3\nB\nnext").pipelines
    assert first.commands[0].stdin == "2\n3"
    assert second.commands[0].words[0].text == "next"
    assert parse("cat <<< 'a b'").pipelines[0].commands[0].stdin == "a b"


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("x ~/a", "~/a"),
        ("x $HOME/a", "~/a"),
        ('x "$HOME/a"', "~/a"),
        ("x ${HOME}", "~"),
        ("D=~/a; x $D", "~/a"),
        ("x '~/a'", "./~/a"),
        ("x a~", "a~"),
        ("x ~root/a", None),
        ("x $UNSET/a", None),
        ("x $(pwd)/a", None),
        ("x $1", None),
        ("cd /a; x b", "/a/b"),
        ("cd a && cd b && x c", "a/b/c"),
        ("(cd /a); x b", "b"),
        ("(cd /a; x b)", "/a/b"),
        ("cd /a | y; x b", "b"),
        ("cd; x b", "~/b"),
        ("cd $UNSET; x b", None),
        ("cd -; x b", None),
        ("cd $UNSET; x /b", "/b"),
    ],
)
def test_a_path_is_known_where_the_text_says_it(text, path):
    run = [run for run in runs(text) if run.name == "x"][-1]
    assert path_of(run.words[0], run.folder) == path


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("sudo -u me -E env A=1 x y", ["x y"]),
        ("timeout -k 5 10 nice -n 3 nohup x", ["x"]),
        ("nice -n3 x", ["x"]),
        ("/usr/bin/x y", ["x y"]),
        ("command -v x", []),
        ("exec x", ["x"]),
        ("bash -c 'x; y'", ["bash -c x; y", "x", "y"]),
        ("bash -lc 'x'", ["bash -lc x", "x"]),
        ("sudo sh -c \"sh -c 'x y'\"", ["sh -c sh -c 'x y'", "sh -c x y", "x y"]),
        ("eval 'x y'", ["x y"]),
        ("eval x y", ["x y"]),
        ("echo x y | sh", ["echo x y", "sh", "x y"]),
        ("bash <<E\nx y\nE", ["bash", "x y"]),
        ("cat <<E | sudo bash\nx\nE", ["cat", "bash", "x"]),
        ("echo a b | xargs -n 1 x -f", ["echo a b", "x -f a b"]),
        ("su me -c 'x y'", ["x y"]),
        ("ssh -p 1 host x y", ["x y"]),
        ("trap 'x y' EXIT", ["x y"]),
        ("bash script.sh", ["bash script.sh"]),
        ('bash -c "$UNSET"', ["bash -c "]),
    ],
)
def test_what_only_starts_another_is_seen_through(text, expected):
    assert programs(text) == expected


def test_find_runs_what_its_exec_says():
    run = list(runs("find . -name a -exec sudo x -f {} \\;"))[-1]
    assert (run.name, run.listed, [word.known for word in run.words]) == ("x", True, [True, False])


WORDS = st.text(st.sampled_from("ab \"'\\-/.,"), max_size=24)


@given(WORDS)
def test_words_are_split_as_shlex_splits_them(text):
    try:
        expected = shlex.split(text)
    except ValueError:  # an open quote or a last backslash: a shell would ask for more
        return
    assert [word for command in commands(text) for word in command] == expected


@given(st.lists(st.text(max_size=12), min_size=1, max_size=5))
def test_quoted_words_are_data_whatever_they_hold(words):
    words = ["echo", *(word.replace("\0", "") for word in words)]
    assert commands(shlex.join(words)) == [words]


PIECES = """
rm a ; | & && ( ) $( ` { } ' " \\ $ ${ x= < > << E <( $(( )) # ~ * if then fi for case bash -c eval xargs sudo find
-exec 2> <<< é
"""
SHELLISH = st.lists(st.sampled_from([*PIECES.split(), " ", " ", "\n", "\t"]), max_size=40).map("".join)


@given(SHELLISH)
def test_any_text_is_read_to_its_end(text):
    for run in runs(text):
        assert isinstance(run.text, str)


def test_a_variable_that_doubles_itself_is_given_up():
    assert max(len(run.text) for run in runs("x=ab;" + "x=$x$x;" * 200 + "y $x")) < 20_000


@pytest.mark.parametrize("unit", ["$(", "(", "`", "bash -c '", "<<E\n", "echo $(", "a | ", "${", "'\"", "x=$x$x;"])
def test_time_stays_bounded_on_deep_and_long_texts(unit):
    start = time.process_time()
    list(runs(unit * 2000))
    assert time.process_time() - start < 5
