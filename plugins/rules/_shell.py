"""A shell command as its parts: which programs a text would run, with which words, in which pipeline.

Enough of POSIX sh and bash for that: quotes, escapes, comments, lists, pipelines, groups, substitutions, redirections,
here-documents, functions, and variables that the text itself sets. Nothing is run, and no file is looked at. What
cannot be known from the text (another variable, a substitution's output) makes a word that is not `known`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

DEEPEST = 8
"""Groups and substitutions nested deeper than this are not read."""
MOST = 3_000
"""Pipelines: what comes behind so many is not read."""
LONGEST = 10_000
"""Characters: a word that variables would make longer is not known."""


@dataclass(frozen=True, slots=True)
class Word:
    """A word without its quotes."""

    text: str
    known: bool = True
    """Its value is its text. False when part of it is only known to the shell that runs it."""
    glob: bool = False
    """It has a `*`, `?` or `[` that the shell expands."""
    home: bool = False
    """Its leading `~` stands for the home folder; `$HOME` is written so too."""
    inner: tuple[Pipeline, ...] = ()
    """What its substitutions run."""


@dataclass(frozen=True, slots=True)
class Redirect:
    operator: str
    """`>`, `>>`, `>|`, `&>`, `&>>`, `<>` or `<`."""
    target: Word

    @property
    def writes(self) -> bool:
        return ">" in self.operator


@dataclass(frozen=True, slots=True)
class Command:
    """A simple command: the program's name and its arguments, without reserved words and assignments in front."""

    words: tuple[Word, ...]
    redirects: tuple[Redirect, ...] = ()
    stdin: str | None = None
    """The text of its here-document or here-string, when it has one."""


@dataclass(frozen=True, slots=True)
class Pipeline:
    commands: tuple[Command, ...]
    scope: tuple[int, ...] = ()
    """The subshells that it runs in, outermost first: a `cd` there ends with them."""
    fed_by: tuple[Command, ...] = ()
    """What writes into its first command from outside: the other side of a pipe into or out of a subshell."""


@dataclass(slots=True)
class Script:
    """A whole text, flattened: what stands inside groups, loops and functions comes in the order of the text, what a
    substitution runs before the command that it is part of."""

    pipelines: list[Pipeline] = field(default_factory=list)
    functions: set[str] = field(default_factory=set)
    """Names of functions that the text defines."""


def parse(text: str) -> Script:
    """Read a text. One that a shell would refuse is read as far as it makes sense; it raises nothing.

    Time grows with the length of the text: runs of ordinary characters, quoted texts and here-documents are taken
    whole.
    """
    reader = _Reader(text, Script(), {}, ())
    reader.read("")
    return reader.script


# ------------------------------------------------------------------------------------------------------ reading

OPERATOR = re.compile(r"&&|\|\||\|&|;;&?|;&|&>>?|\d*(?:<<<|<<-?|>>|>\||<>|>&|<&|[<>])|[;&|()\n]")
PLAIN = re.compile(r"[^\s'\"\\$`;&|<>()*?\[~]+")
QUOTED = re.compile(r"[^\"\\$`]+")
BLANKS = re.compile(r"(?:[^\S\n]|\\\n)+")
NAME = re.compile(r"[A-Za-z_]\w*")
ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)\+?=")
EMPTY_PARENTHESES = re.compile(r"[^\S\n]*\)")
IN_FRONT = frozenset(("if", "then", "elif", "else", "do", "while", "until", "!", "{", "time", "coproc"))
"""Reserved words that a command may follow."""
NO_COMMAND = frozenset(("for", "select", "case", "fi", "done", "esac", "}"))
"""Reserved words whose words are no command."""
DECLARING = frozenset(("export", "local", "readonly", "declare", "typeset"))


@dataclass(slots=True)
class _Open:
    """The command that is being read."""

    words: list[Word] = field(default_factory=list)
    redirects: list[Redirect] = field(default_factory=list)
    stdin: str | None = None


class _Reader:
    """Reads from left to right. A subshell or substitution is read by a reader of its own, into the same script."""

    def __init__(self, text: str, script: Script, variables: dict[str, Word], scope: tuple[int, ...]) -> None:
        self.text, self.script, self.variables, self.scope = text, script, variables, scope
        self.at = 0
        self.scopes = 0
        self.open = _Open()
        self.commands: list[Command] = []
        self.fed_by: tuple[Command, ...] = ()

    def read(self, closer: str) -> None:
        """Read up to and with `closer`, or to the end of the text."""
        while self.at < len(self.text) and len(self.script.pipelines) < MOST:
            if blanks := BLANKS.match(self.text, self.at):
                self.at = blanks.end()
            elif self.text[self.at] == "#":
                self.at = _find(self.text, "\n", self.at)
            elif found := OPERATOR.match(self.text, self.at):
                self.at = found.end()
                if found.group() == ")" == closer:
                    break
                self._operator(found.group())
            else:
                self.open.words.append(self._word())
        self._end_pipeline()

    # ------------------------------------------------------------------------------------------------ operators

    def _operator(self, operator: str) -> None:
        if operator == "(":
            self._group()
        elif operator == ")":
            self.open = _Open()  # the pattern of a `case`
        elif operator in ("|", "|&"):
            self._end_command()
        elif ">" in operator or "<" in operator:
            self._redirect(operator.lstrip("0123456789"))
        else:
            self._end_pipeline()

    def _group(self) -> None:
        """Behind a `(`: a subshell, or the `()` of a function that is being defined."""
        words = [word.text for word in self.open.words]
        named = words and all(word in IN_FRONT or word == "function" for word in words[:-1])
        if named and (closing := EMPTY_PARENTHESES.match(self.text, self.at)):
            self.script.functions.add(words[-1])
            self.open, self.at = _Open(), closing.end()
            return
        fed_by = tuple(self.commands)
        self._end_pipeline()
        inside = self._nested(fed_by)
        self.fed_by = tuple(command for pipeline in inside for command in pipeline.commands)

    def _nested(self, fed_by: tuple[Command, ...] = ()) -> tuple[Pipeline, ...]:
        """Read up to the `)` of a subshell or a substitution; what runs there."""
        before = len(self.script.pipelines)
        self.scopes += 1
        deeper = _Reader(self.text, self.script, dict(self.variables), (*self.scope, self.scopes))
        deeper.at, deeper.fed_by = self.at, fed_by
        if len(deeper.scope) <= DEEPEST:
            deeper.read(")")
        else:
            deeper.at = len(self.text)
        self.text, self.at = deeper.text, deeper.at
        return tuple(self.script.pipelines[before:])

    def _redirect(self, operator: str) -> None:
        if operator in ("<", ">") and self.text.startswith("(", self.at):
            self.at += 1  # a process substitution: the word is a file that another command fills or reads
            self.open.words.append(Word("/dev/fd/63", False, inner=self._nested()))
            return
        if blanks := BLANKS.match(self.text, self.at):
            self.at = blanks.end()
        if self.at >= len(self.text) or OPERATOR.match(self.text, self.at, self.at + 1):
            return
        word = self._word()
        if operator in ("<<", "<<-"):
            self.open.stdin = self._document(word.text, operator == "<<-")
        elif operator == "<<<":
            self.open.stdin = word.text if word.known else None
        elif operator not in (">&", "<&"):
            self.open.redirects.append(Redirect(operator, word))
        elif operator == ">&" and not word.text.rstrip("-").isdigit() and word.text != "-":
            self.open.redirects.append(Redirect("&>", word))

    def _document(self, last: str, cut: bool) -> str:
        """The here-document that begins on the next line and ends with the line `last`. It is data, so it is taken out
        of the text that is read."""
        start = self._line_after(self.at)
        lines, end = [], start
        while end < len(self.text):
            line = self.text[end : _find(self.text, "\n", end)]
            end = self._line_after(end)
            line = line.lstrip("\t") if cut else line
            if line == last:
                break
            lines.append(line)
        self.text = self.text[:start] + self.text[end:]
        return "\n".join(lines)

    def _line_after(self, place: int) -> int:
        return min(_find(self.text, "\n", place) + 1, len(self.text))

    # ---------------------------------------------------------------------------------------- commands that end

    def _end_command(self) -> None:
        words, opened, self.open = self.open.words, self.open, _Open()
        while words and words[0].text in IN_FRONT:
            words = words[1:]
        if words and words[0].text == "function" and len(words) > 1:
            self.script.functions.add(words[1].text)
            words = words[3:]
        if words and words[0].text in NO_COMMAND:
            return
        rest = list(words)
        while rest and ASSIGNMENT.match(rest[0].text):
            rest = rest[1:]
        if not rest or rest[0].text in DECLARING:
            self._assign(words if not rest else rest[1:])
        redirects = () if rest and rest[0].text == "[[" else tuple(opened.redirects)
        if rest or redirects:
            self.commands.append(Command(tuple(rest), redirects, opened.stdin))

    def _assign(self, words: list[Word]) -> None:
        for word in words:
            if found := ASSIGNMENT.match(word.text):
                whole = "+" not in found.group()
                self.variables[found[1]] = Word(
                    word.text[found.end() :], word.known and whole, word.glob, word.home, word.inner
                )

    def _end_pipeline(self) -> None:
        self._end_command()
        if self.commands:
            self.script.pipelines.append(Pipeline(tuple(self.commands), self.scope, self.fed_by))
        self.commands, self.fed_by = [], ()

    # -------------------------------------------------------------------------------------------------- a word

    def _word(self) -> Word:
        made = _Made()
        while self.at < len(self.text):
            char = self.text[self.at]
            if run := PLAIN.match(self.text, self.at):
                self.at = run.end()
                made.text += run.group()
            elif char == "'":
                end = _find(self.text, "'", self.at + 1)
                made.text += self.text[self.at + 1 : end]
                self.at = end + 1
            elif char == '"':
                self.at += 1
                self._quoted(made)
            elif char == "\\":
                made.text += self.text[self.at + 1 : self.at + 2].replace("\n", "")
                self.at += 2
            elif char == "$":
                self._dollar(made)
            elif char == "`":
                self._backticks(made)
            elif char in "*?[":
                made.glob = True
                self._take(made)
            elif char == "~":
                self._tilde(made)
            else:
                break
        return Word(made.text, made.known, made.glob, made.home, made.inner)

    def _take(self, made: _Made) -> None:
        made.text += self.text[self.at]
        self.at += 1

    def _tilde(self, made: _Made) -> None:
        if made.begins:
            if self.text[self.at + 1 : self.at + 2] in ("", "/") or self.text[self.at + 1] in " \t\n;&|<>()":
                made.home = True
            else:
                made.known = False  # another user's home
        self._take(made)

    def _quoted(self, made: _Made) -> None:
        """Behind a `"`: up to and with the next one."""
        while self.at < len(self.text):
            char = self.text[self.at]
            if run := QUOTED.match(self.text, self.at):
                self.at = run.end()
                made.text += run.group()
            elif char == '"':
                self.at += 1
                return
            elif char == "\\":
                escaped = self.text[self.at + 1 : self.at + 2]
                made.text += {"\n": ""}.get(escaped, escaped if escaped in tuple('"\\$`') else char + escaped)
                self.at += 2
            elif char == "$":
                self._dollar(made)
            else:
                self._backticks(made)

    def _dollar(self, made: _Made) -> None:
        """At a `$`: a variable, a substitution, or only a dollar."""
        ahead = self.text[self.at + 1 : self.at + 3]
        if ahead == "((":
            self.at = _find(self.text, "))", self.at) + 2
            made.known = False
        elif ahead[:1] == "(":
            self.at += 2
            made.inner += self._nested()
            made.known = False
        elif ahead[:1] == "{":
            end = _find(self.text, "}", self.at)
            self._variable(self.text[self.at + 2 : end], made)
            self.at = end + 1
        elif name := NAME.match(self.text, self.at + 1):
            self._variable(name.group(), made)
            self.at = name.end()
        elif ahead[:1] in ("'", '"') and ahead:
            self.at += 1  # $'...' and $"..." differ from the plain quotes in escapes and language only
        elif ahead[:1] and ahead[:1] in "0123456789@*#?!$-":
            self.at += 2
            made.known = False
        else:
            self._take(made)

    def _variable(self, name: str, made: _Made) -> None:
        if name == "HOME" and "HOME" not in self.variables:
            made.home = made.home or made.begins
            made.text += "~"
        elif name == "PWD" and "PWD" not in self.variables:
            made.text += "."
        elif (value := self.variables.get(name)) and len(made.text) + len(value.text) <= LONGEST:
            made.home = made.home or (value.home and made.begins)
            made.text += value.text
            made.known, made.glob = made.known and value.known, made.glob or value.glob
            made.inner += value.inner
        else:
            made.known = False

    def _backticks(self, made: _Made) -> None:
        end = self.at + 1
        while end < len(self.text) and self.text[end] != "`":
            end += 2 if self.text[end] == "\\" else 1
        self.scopes += 1
        deeper = _Reader(
            self.text[self.at + 1 : end].replace("\\`", "`"),
            self.script,
            dict(self.variables),
            (*self.scope, self.scopes),
        )
        before = len(self.script.pipelines)
        if len(deeper.scope) <= DEEPEST:
            deeper.read("")
        made.inner += tuple(self.script.pipelines[before:])
        made.known = False
        self.at = end + 1


@dataclass(slots=True)
class _Made:
    """The word that is being read."""

    text: str = ""
    known: bool = True
    glob: bool = False
    home: bool = False
    inner: tuple[Pipeline, ...] = ()

    @property
    def begins(self) -> bool:
        """Nothing is read of it yet, or only the `NAME=` of an assignment."""
        return not self.text or ASSIGNMENT.fullmatch(self.text) is not None


def _find(text: str, what: str, start: int) -> int:
    """Where `what` begins at or behind `start`; the end of the text without it."""
    found = text.find(what, start)
    return len(text) if found < 0 else found
