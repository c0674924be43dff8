"""What a block asks of a model, checked before anything runs, and where its rows stand on the position axes."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from dataclasses import replace

from tandem.core.plugin import Block, ImageRows
from tandem.plugins.models._hybrid.sequence import HybridSequence, Place

Position = tuple[int, int, int]
"""Time, height, width."""


def check(blocks: Seq[Block], owner: object, vocab: int, image_token: int | None) -> None:
    """Raise ValueError for blocks that can't run together. `owner` is that of the model's sequences; `image_token` is
    None where it reads text only."""
    for block in blocks:
        _check_rows(block, owner, vocab)
        _check_images(block, image_token)
    if len({id(block.sequence) for block in blocks}) < len(blocks):
        raise ValueError("two blocks extend one sequence; a pass takes one block of each sequence")


def _check_rows(block: Block, owner: object, vocab: int) -> None:
    count = len(block.tokens)
    if not isinstance(block.sequence, HybridSequence) or block.sequence.owner is not owner:
        raise ValueError("the block's sequence was not made by this model")
    if count == 0:
        raise ValueError("a block needs at least one token")
    block.sequence.check_room(count)
    check_tokens(block.tokens, vocab)
    if block.parents is not None:
        if len(block.parents) != count:
            raise ValueError(
                f"the block has {count} tokens and {len(block.parents)} parents; it needs one parent a token"
            )
        check_parents(block.parents)
    if any(not 0 <= row < count for row in block.logits):
        raise ValueError(f"logits are wanted of rows {list(block.logits)}; the block has rows 0 to {count - 1}")


def check_tokens(tokens: Seq[int], vocab: int) -> None:
    if min(tokens) < 0 or max(tokens) >= vocab:
        wrong = next(token for token in tokens if not 0 <= token < vocab)
        raise ValueError(f"token {wrong} is outside the vocabulary; the ids are 0 to {vocab - 1}")


def check_parents(parents: Seq[int], first: int = 0) -> None:
    """`parents` are those of the rows from `first` on."""
    for row, parent in enumerate(parents, first):
        if not -1 <= parent < row:
            raise ValueError(f"row {row} hangs on row {parent}; a parent is -1 or a row before its child")


def _check_images(block: Block, image_token: int | None) -> None:
    place: Place = block.sequence.place
    if not block.images and place.picture is None:
        return
    if image_token is None:
        raise ValueError("the block shows a picture; this model reads text only")
    if block.parents is not None and any(parent != row - 1 for row, parent in enumerate(block.parents)):
        raise ValueError("the block shows a picture and branches; pictures are read in a chain only")
    if place.picture is not None and [(image.row, image.picture.id, image.first) for image in block.images[:1]] != [
        (0, place.picture, place.rows)
    ]:
        raise ValueError(f"the sequence ends within a picture; its next row must be row {place.rows} of that one")
    at = 0
    for number, image in enumerate(block.images):
        end, stop = image.row + image.count, image.first + image.count
        if image.row < at or image.count < 1 or end > len(block.tokens):
            raise ValueError(
                f"the picture's rows {image.row} to {end - 1} are not in order within the block, which has rows 0 to "
                f"{len(block.tokens) - 1}"
            )
        if image.first < 0 or stop > image.picture.rows:
            raise ValueError(f"rows {image.first} to {stop - 1} of a picture are wanted; it has {image.picture.rows}")
        if image.first and (number or place.picture is None):
            raise ValueError("the block shows a picture's later rows without the first ones before them")
        if stop < image.picture.rows and end < len(block.tokens):
            raise ValueError("a picture ends before its last row, and other rows follow")
        if any(token != image_token for token in block.tokens[image.row : end]):
            raise ValueError(f"the tokens of a picture's rows must be the placeholder, {image_token}")
        at = end


def cut(images: Seq[ImageRows], count: int) -> list[ImageRows]:
    """What the first `count` rows of a block show."""
    return [replace(image, count=min(image.count, count - image.row)) for image in images if image.row < count]


def positions(block: Block, depths: Seq[int] | None, merge: int) -> tuple[list[Position], list[Place]]:
    """For each row its position, and where the sequence stands once that row is its last one.

    `depths` are those of a tree's rows; None = a chain. `merge` is how many patches of a picture one of its rows takes
    along each side. A text row stands at one place of all three axes, one further than the row before it. A picture's
    rows stand at its base on the time axis and at base + row and base + column of the merged grid on the others; the
    text goes on after its longer side.
    """
    place: Place = block.sequence.place
    if depths is not None:
        base = place.position
        return [(base + depth,) * 3 for depth in depths], [Place(base + depth + 1) for depth in depths]
    found: list[Position] = []
    after: list[Place] = []
    showing = {image.row + step: (image, image.first + step) for image in block.images for step in range(image.count)}
    for row in range(len(block.tokens)):
        base = place.position
        if row not in showing:
            found.append((base, base, base))
            place = Place(base + 1)
        else:
            image, number = showing[row]
            height, width = image.picture.grid[1] // merge, image.picture.grid[2] // merge
            found.append((base, base + number // width, base + number % width))
            whole = number + 1 == image.picture.rows
            place = Place(base + max(height, width)) if whole else Place(base, image.picture.id, number + 1)
        after.append(place)
    return found, after
