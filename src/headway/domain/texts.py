"""The fixed texts on which quality is measured, and the short prompts of the benchmark. All written for headway.

They are part of what a stored reference means: a change of one letter changes `prompt_set_digest`, and every source
is measured anew.
"""

from headway.domain.value import digest

QUALITY_TEXTS: tuple[str, ...] = (
    # Narrative prose.
    (
        "The last train of the evening left the small station at ten minutes past nine. Two people stepped down "
        "from it: an old man with a violin case, and a girl who had slept through the whole journey and now "
        "looked around as if somebody had moved the town while she was away. The stationmaster knew them both. "
        "He took off his cap, waited until the red lights had gone behind the hill, and then asked the question "
        "that he had been saving since the morning: whether the river, where they came from, was still rising."
    ),
    # Explanation.
    (
        "Bread rises because yeast eats the sugar in the dough and gives off carbon dioxide. The gas cannot "
        "escape, since kneading has turned the proteins of the flour into an elastic net, so the dough fills "
        "with small bubbles and grows. In the oven the bubbles expand once more, the water in the dough turns to "
        "steam, and the net sets hard. If the dough is baked too early, the bread is heavy; if it is left too "
        "long, the net tears and the loaf collapses."
    ),
    # Instructions.
    (
        "To change the battery of the smoke detector, first turn off the alarm with the button on its side. Turn "
        "the cover counterclockwise until it comes loose. Take out the old battery, and wait for ten seconds "
        "before you put in the new one, so that the device forgets the warning. Make sure that the plus sign "
        "points to the left. Close the cover, press the test button, and keep it pressed until you hear three "
        "short tones. Write the date on a piece of tape."
    ),
    # Program text.
    (
        "def moving_average(values, width):\n"
        '    """Return the mean of each window of `width` neighbouring values."""\n'
        "    if width < 1:\n"
        '        raise ValueError("width must be at least 1")\n'
        "    total = sum(values[:width])\n"
        "    means = [total / width]\n"
        "    for i in range(width, len(values)):\n"
        "        total += values[i] - values[i - width]\n"
        "        means.append(total / width)\n"
        "    return means\n"
    ),
    # Numbers and tables.
    (
        "Month, visitors, of them new\nJanuary, 1200, 310\nFebruary, 1150, 295\nMarch, 1420, 388\n"
        "April, 1610, 450\nMay, 1875, 520\nJune, 2010, 548\n"
        "In the first half of the year there were 9265 visitors, of whom 2511 came for the first time. June was "
        "the strongest month, with 2010 visitors, and February the weakest, with 1150."
    ),
    # Dialogue.
    (
        '"Did you lock the door?" asked Martha.\n"I thought you did," said Paul.\n'
        '"I was carrying the boxes. You had the key."\n'
        '"I gave you the key, in the kitchen, when you asked me for the scissors."\n'
        'Martha put down the boxes and looked into her left pocket, then into her right one. "Oh," she said. '
        '"Then I suppose that we are going back."\n'
        '"We could also call your sister," said Paul, "and ask her to have a look."'
    ),
    # Encyclopedic facts.
    (
        "The Moon is the only natural satellite of the Earth. It is about 384,400 kilometres away, and light "
        "takes a little more than a second to cross that distance. Because it turns once on its axis in the same "
        "time in which it goes once around the Earth, it always shows us the same side. Its gravity raises the "
        "tides of the oceans. In July 1969, two astronauts of the Apollo 11 mission became the first people to "
        "walk on its surface."
    ),
    # A letter.
    (
        "Dear Ms. Carter,\n\n"
        "Thank you for your letter of 4 May. We are sorry that the chair arrived with a broken leg. A new one "
        "will be sent to you this week, at no cost, and the driver will take the damaged chair back with him. "
        "You do not need to pack it. If you would rather have your money back, please let us know by Friday, and "
        "we will return the full amount to your account within ten days.\n\n"
        "Yours sincerely,\nThomas Reed\nCustomer service"
    ),
    # Argument.
    (
        "Some people say that a city should build wider roads when its traffic gets worse. The idea seems "
        "obvious, but experience speaks against it. Wider roads make driving easier for a year or two; then more "
        "people drive, shops move to where the cars are, and the buses lose their passengers. In the end the "
        "roads are as full as before, and there are more of them to repair. It is usually cheaper to give people "
        "a good reason to leave the car at home."
    ),
    # Question and answer.
    (
        "Question: What is the capital of France, and which river flows through it?\n"
        "Answer: The capital of France is Paris, and the river Seine flows through it.\n"
        "Question: How many days does a leap year have?\nAnswer: A leap year has 366 days.\n"
        "Question: What do plants need in order to grow?\n"
        "Answer: Plants need light, water, air and minerals from the soil.\n"
        "Question: Who wrote the play Romeo and Juliet?\nAnswer: William Shakespeare wrote Romeo and Juliet."
    ),
    # Reasoning in steps.
    (
        "A farmer has 24 apples and wants to share them among 5 children. He gives each child 4 apples, because "
        "5 times 4 is 20. Then 4 apples are left. He cannot give one more to each child, since he would need 5 "
        "for that. So he keeps 2 for himself and puts the other 2 into the basket for the horse. In the end each "
        "child has 4 apples, the farmer has 2, and the horse gets 2, which makes 24 in all."
    ),
    # Structured data.
    (
        '{"name": "weekly report", "created": "2025-03-02", "items": [{"id": 1, "title": "Check the pumps", '
        '"done": true}, {"id": 2, "title": "Order new filters", "done": false}, {"id": 3, "title": "Call the '
        'supplier", "done": false}], "owner": {"first": "Anna", "last": "Weber"}, "tags": ["maintenance", '
        '"water", "weekly"]}'
    ),
)
"""Twelve passages of varied kind; between 1200 and 1500 tokens in all with common tokenizers."""

_TOPICS = (
    "the water cycle",
    "a bicycle",
    "the moon",
    "a good night's sleep",
    "bread",
    "a lighthouse",
    "the history of paper",
    "a thunderstorm",
    "the number zero",
    "a public library",
    "honey bees",
    "a mountain village",
    "the alphabet",
    "a rainbow",
    "tea",
    "an old clock",
)
_REQUESTS = (
    "Explain {topic} to a child in two sentences.",
    "Write a short paragraph about {topic}.",
    "List three facts about {topic}.",
    "Ask me a question about {topic}, and then answer it.",
)

BENCH_PROMPTS: tuple[str, ...] = tuple(request.format(topic=topic) for topic in _TOPICS for request in _REQUESTS)
"""64 short prompts."""


def prompt_set_digest() -> str:
    """Name the quality texts."""
    return digest(list(QUALITY_TEXTS))
