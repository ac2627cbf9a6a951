"""The demo's prompts: questions about the texts beside this file, and short ones of everyday chat."""

from dataclasses import dataclass
from importlib.resources import files


@dataclass(frozen=True, slots=True)
class Prompt:
    """What one client asks."""

    name: str
    """Short, unique, for the display."""
    question: str
    text: str = ""
    """What the question is about; empty for plain chat."""

    @property
    def content(self) -> str:
        """The user's message.

        The question comes first, so that two questions about one text share no prefix and each has to be prefilled,
        and again last, because a small model has forgotten it by then.
        """
        if not self.text:
            return self.question
        return f"{self.question}\n\n{self.text}\n\n{self.question}"

    @property
    def messages(self) -> list[dict[str, str]]:
        """The conversation as chat templates take it."""
        return [{"role": "user", "content": self.content}]


def _text(name: str) -> str:
    return (files(__package__) / "texts" / f"{name}.txt").read_text(encoding="utf-8").strip()


# One text after the other, then each again with another question.
_QUESTIONS = [
    ("alice", "Summarize this story in a few sentences."),
    ("declaration", "What does this document declare, and why? Answer in one paragraph."),
    ("holmes", "Who are the people in this story, and what do they talk about?"),
    ("constitution", "Explain in simple words what this document says about the House and the Senate."),
    ("bennet", "What do Mr. and Mrs. Bennet disagree about in this story?"),
    ("lincoln", "What is the main message of these speeches? Answer in one paragraph."),
    ("holmes", "How does Sherlock Holmes know so much about Dr. Watson? Explain briefly."),
    ("bennet", "Why does Mrs. Bennet want her husband to visit Mr. Bingley? Explain briefly."),
    ("declaration", "List five complaints about the King that this document makes."),
    ("alice", "What happens to Alice after she follows the White Rabbit? Explain briefly."),
    ("lincoln", "Summarize what was said at Gettysburg."),
    ("constitution", "List the rules for becoming a Senator or a Representative that this document gives."),
]

LONG: list[Prompt] = [
    Prompt(f"{name}-{1 + sum(other == name for other, _ in _QUESTIONS[:i])}", question, _text(name))
    for i, (name, question) in enumerate(_QUESTIONS)
]
"""Prompts of at least 1,500 tokens, no two with a common prefix beyond the chat template's own."""

SHORT: list[Prompt] = [
    Prompt("capital", "What is the capital of France, and what is it known for?"),
    Prompt("rainbow", "Explain to a child how a rainbow is made."),
    Prompt("garden", "Give me five tips for starting a small vegetable garden."),
    Prompt("letter", "Write a short letter to thank a friend for a birthday gift."),
    Prompt("sleep", "Why do people need sleep?"),
    Prompt("python", "What is a list in Python, and how do I add an item to it?"),
    Prompt("lighthouse", "Tell me a short story about a lighthouse keeper and a lost boat."),
    Prompt("water", "Describe the water cycle in a few sentences."),
]
"""Prompts of a line, whose clients only wait for tokens."""
