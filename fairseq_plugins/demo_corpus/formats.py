"""Numbers, money, measures, dates and times of the demo corpus, written as CLDR and num2words write them."""

from __future__ import annotations

import datetime
import functools
from random import Random

from babel import Locale, dates, numbers, units
from num2words import num2words

from fairseq_plugins.demo_corpus.clauses import Adverb
from fairseq_plugins.demo_corpus.grammar import Phrase, fixed

EN, DE, GB = Locale("en", "US"), Locale("de"), Locale("en", "GB")
VARIATION = 0.35  # how often a German word other than the usual one stands for an English one


def plain(text: str) -> str:
    """The text with ordinary spaces in place of CLDR's no-break and thin ones."""
    return " ".join(text.split())


@functools.cache
def words(number: int, ordinal: bool = False) -> tuple[str, str]:
    """A number in English and German words; ordinals in German without their ending."""
    to = "ordinal" if ordinal else "cardinal"
    english = num2words(number, lang="en", to=to).replace(",", "")
    german = num2words(number, lang="de", to=to)
    return english, german.removesuffix("e") if ordinal else german


# --- numbers, money, measures


def number(value: float, pattern: str = "#,##0.##") -> tuple[str, str]:
    """A number with the group and decimal signs of both languages."""
    return tuple(plain(numbers.format_decimal(value, format=pattern, locale=x)) for x in (EN, DE))


def price(rng: Random, low: int = 20, high: int = 2500) -> Phrase:
    """An amount of money, with sign or with the name of the currency."""
    currency = rng.choice(("EUR", "EUR", "EUR", "USD", "USD", "GBP", "CHF"))
    value = rng.choice((rng.randint(low, high), rng.randint(100 * low, 100 * high) / 100))
    if rng.random() < 0.35 and currency != "GBP":
        value = int(value) + 1
        names = [numbers.get_currency_name(currency, value, x) for x in (EN, DE)]
        return fixed(*(f"{n} {name}" for n, name in zip(number(value), names, strict=True)))
    pattern = {EN: "¤#,##0.00" if value % 1 else "¤#,##0", DE: "#,##0.00 ¤" if value % 1 else "#,##0 ¤"}
    english, german = (
        plain(numbers.format_currency(value, currency, format=pattern[x], locale=x, currency_digits=False))
        for x in (EN, DE)
    )
    return fixed(english.replace("CHF", "CHF "), german)


def compact(rng: Random, scales: tuple[int, ...]) -> tuple[str, str]:
    """A number with million or billion: 3.5 million, 3,5 Millionen."""
    value = rng.choice((rng.randint(2, 90), rng.randint(11, 399) / 10)) * rng.choice(scales)
    return tuple(
        plain(numbers.format_compact_decimal(value, format_type="long", fraction_digits=1, locale=x)) for x in (EN, DE)
    )


def percent(rng: Random) -> Phrase:
    """A percentage, with sign or word."""
    value = rng.choice((rng.randint(2, 75), rng.randint(11, 199) / 10))
    if rng.random() < 0.5:
        return measure("concentr-percent", value, "long")
    return fixed(
        *(
            plain(numbers.format_percent(value / 100, format=pattern, locale=x))
            for x, pattern in ((EN, "#,##0.#%"), (DE, "#,##0.# %"))
        )
    )


@functools.lru_cache(maxsize=100_000)
def measure(unit: str, value: float, length: str) -> Phrase:
    """A number with a unit of CLDR: 5 kilometers, 5 km."""
    return fixed(*(plain(units.format_unit(value, unit, length, locale=x)) for x in (EN, DE)))


# slot: unit, lengths to choose from, smallest, largest, step
MEASURES = {
    "km": ("length-kilometer", "long short", 12, 2500, 1),
    "cm": ("length-centimeter", "long", 40, 200, 1),
    "meters": ("length-meter", "long", 60, 2400, 1),
    "millimeters": ("length-millimeter", "long", 3, 80, 1),
    "wind": ("speed-kilometer-per-hour", "short", 50, 160, 5),
    "kmh": ("speed-kilometer-per-hour", "short", 40, 280, 5),
    "kilos": ("mass-kilogram", "long short", 2, 30, 0.5),
    "grams": ("mass-gram", "long", 50, 900, 50),
    "milliliters": ("volume-milliliter", "long", 50, 900, 50),
    "gigabytes": ("digital-gigabyte", "long short", 2, 512, 2),
    "area": ("area-square-meter", "short", 25, 400, 1),
    "temperature": ("temperature-celsius", "long short", 2, 38, 1),
}


# --- dates and times


def random_date(rng: Random, first: int, last: int) -> datetime.date:
    """A day of the years ``first`` to ``last``."""
    start = datetime.date(first, 1, 1).toordinal()
    return datetime.date.fromordinal(rng.randint(start, datetime.date(last, 12, 31).toordinal()))


@functools.lru_cache(maxsize=100_000)
def format_date(day: datetime.date, pattern: str, locale: Locale) -> str:
    """``dates.format_date``, remembered."""
    return plain(dates.format_date(day, pattern, locale=locale))


def date_phrase(rng: Random, first: int, last: int) -> tuple[str, str]:
    """A date in one of several formats, in a form that fits English "on" and German "am"."""
    day = random_date(rng, first, last)
    style = rng.random()
    if style < 0.45:
        return format_date(day, "long", GB if style < 0.1 else EN), format_date(day, "long", DE)
    if style < 0.65:
        return format_date(day, "MMMM d", EN), format_date(day, "d. MMMM", DE)
    if style < 0.82:
        english = format_date(day, "full", EN)
        return english, format_date(day, "EEEE", DE) + ", dem " + format_date(day, "long", DE) + ","
    english = format_date(day, "short", EN) if style < 0.9 else format_date(day, "yyyy-MM-dd", EN)
    if style < 0.9:
        return english, format_date(day, "short", DE)
    return english, format_date(day, "medium", DE)


def day_of_year(rng: Random, first_month: int, last_month: int) -> tuple[str, str]:
    """A day and month, without year."""
    day = datetime.date(2023, rng.randint(first_month, last_month), rng.randint(1, 28))
    return format_date(day, "MMMM d", EN), format_date(day, "d. MMMM", DE)


def clock(rng: Random, first: int = 6, last: int = 22) -> Phrase:
    """A time of day: 3:45 PM, 15:45 Uhr."""
    time = datetime.time(rng.randint(first, last), 5 * rng.randint(0, 11))
    english = plain(dates.format_time(time, "short", locale=EN))
    german = plain(dates.format_time(time, "short", locale=DE))
    if time.minute == 0 and rng.random() < VARIATION:
        german = str(time.hour)
    return fixed(english, german + " Uhr", bare=german)


def spoken_clock(rng: Random) -> tuple[str, str]:
    """A time of day in words: a quarter past three, Viertel nach drei."""
    hour = rng.randint(2, 11)
    (english, german), (_, next_german) = words(hour), words(hour + 1)
    next_english = words(hour + 1)[0]
    number = words(rng.choice((5, 10, 20)))
    return rng.choice(
        (
            (f"half past {english}", f"halb {next_german}"),
            (f"a quarter past {english}", f"Viertel nach {german}"),
            (f"a quarter to {next_english}", f"Viertel vor {next_german}"),
            (f"{number[0]} past {english}", f"{number[1]} nach {german}"),
            (f"{number[0]} to {next_english}", f"{number[1]} vor {next_german}"),
            (f"{english} o'clock", f"{german} Uhr"),
        )
    )


@functools.cache
def _delta(unit: str, count: int) -> tuple[str, str]:
    seconds = {"minute": 60, "hour": 3600, "day": 86400, "week": 604800, "month": 2629800, "year": 31557600}[unit]
    span = datetime.timedelta(seconds=seconds * count)
    return tuple(
        dates.format_timedelta(span, granularity=unit, threshold=10_000, add_direction=True, locale=x) for x in (EN, DE)
    )


def span(rng: Random, unit: str, low: int, high: int) -> Phrase:
    """Two or more minutes to years, small numbers sometimes in words; ``dat`` fits "seit" and "vor"."""
    count = rng.randint(max(low, 2), high)
    english = units.format_unit(count, f"duration-{unit}", "long", locale=EN)
    german = units.format_unit(count, f"duration-{unit}", "long", locale=DE)
    dative = _delta(unit, count)[1].removeprefix("in ")
    if count <= 12 and rng.random() < 0.6:
        english, german, dative = (
            text.replace(str(count), words(count)[i], 1) for text, i in ((english, 0), (german, 1), (dative, 1))
        )
    return fixed(english, german, dat=dative)


def month_name(rng: Random, first: int, last: int) -> Phrase:
    month = rng.randint(first, last)
    return fixed(EN.months["format"]["wide"][month], DE.months["format"]["wide"][month])


def weekday(rng: Random, first: int, last: int) -> Phrase:
    day = rng.randint(first, last)
    german = DE.days["format"]["wide"][day]
    return fixed(EN.days["format"]["wide"][day], german, often=german.lower() + "s")


def money(rng: Random) -> Phrase:
    names = rng.choice((("euros", "Euro"), ("dollars", "Dollar"), ("francs", "Franken")))
    amounts = compact(rng, (10**6, 10**6, 10**9))
    return fixed(*(f"{amount} {unit}" for amount, unit in zip(amounts, names, strict=True)))


def late_date(rng: Random) -> Phrase:
    day = datetime.date(rng.randint(2025, 2035), rng.randint(7, 12), rng.randint(1, 28))
    return fixed(format_date(day, "long", EN), format_date(day, "long", DE))


def ago(rng: Random) -> tuple[str, str]:
    """Some time ago: three days ago, vor drei Tagen."""
    time = span(rng, rng.choice(("day", "week", "month", "year", "hour")), 2, 11)
    return f"{time.en} ago", f"vor {time.form('dat')}"


def time_expression(rng: Random, kind: str) -> Adverb:
    """An expression of time: past, future, date, birth, year, period, clock, habit or perfect.

    :raises ValueError: for an unknown kind
    """
    if kind == "year":
        year = str(rng.randint(1950, 2024))
        return Adverb(f"in {year}", f"im Jahr {year}" if rng.random() < VARIATION else year)
    if kind == "period":
        if rng.random() < 0.5:
            return time_expression(rng, "year")
        return rng.choice(PERIODS) if rng.random() < 0.4 else _month_of_year(rng, 1950, 2024)
    if kind in ("date", "birth"):
        english, german = date_phrase(rng, *((1930, 2000) if kind == "birth" else (1950, 2024)))
        return Adverb(f"on {english}", f"am {german}")
    if kind == "clock":
        if rng.random() < 0.3:
            english, german = spoken_clock(rng)
            return Adverb(f"at {english}", f"um {german}")
        time = clock(rng)
        return Adverb(f"at {time.en}", f"um {time.form('nom')}")
    if kind == "habit":
        return rng.choice(HABITS)
    if kind == "perfect":
        if rng.random() < 0.3:
            return Adverb("already", rng.choice(("bereits", "schon")), True)
        return Adverb("just", "gerade", True)
    if kind not in ("past", "future"):
        raise ValueError(f"unknown kind of time expression {kind!r}")
    past = kind == "past"
    style = rng.random()
    if style < 0.3:
        return rng.choice(PAST_WORDS if past else FUTURE_WORDS)
    if style < 0.45:
        word = rng.choice((PAST_WORDS if past else FUTURE_WORDS)[:2])
        time = time_expression(rng, "clock")
        return Adverb(f"{word.en} {time.en}", f"{word.de} {time.de}")
    if style < 0.65 and past:
        return Adverb(*ago(rng))
    if style < 0.65:
        time = span(rng, rng.choice(("day", "week", "month", "hour")), 2, 11)
        return Adverb(f"in {time.en}", f"in {time.form('dat')}")
    if style < 0.8:
        english, german = date_phrase(rng, *((2001, 2024) if past else (2025, 2035)))
        return Adverb(f"on {english}", f"am {german}")
    if style < 0.9:
        day = weekday(rng, 0, 6)
        if rng.random() < 0.5:
            return Adverb(f"on {day.en}", f"am {day.form('nom')}")
        which = ("last", "letzten") if past else ("next", "nächsten")
        return Adverb(f"{which[0]} {day.en}", f"{which[1]} {day.form('nom')}")
    return _month_of_year(rng, *((1950, 2024) if past else (2025, 2035)))


def _month_of_year(rng: Random, first: int, last: int) -> Adverb:
    month = month_name(rng, 1, 12)
    year = rng.randint(first, last)
    return Adverb(f"in {month.en} {year}", f"im {month.form('nom')} {year}")


def _adverbs(rows: str, before: str = "") -> list[Adverb]:
    pairs = [row.split(":") for row in rows.split(", ")]
    return [Adverb(english, german, english in before) for english, german in pairs]


PAST_WORDS = _adverbs(
    "yesterday:gestern, the day before yesterday:vorgestern, last week:letzte Woche, "
    "this morning:heute Morgen, last month:letzten Monat, last year:letztes Jahr, "
    "yesterday evening:gestern Abend, last summer:letzten Sommer"
)
PERIODS = [a for a in PAST_WORDS if a.en in ("last month", "last year", "last summer")]
FUTURE_WORDS = _adverbs(
    "tomorrow:morgen, the day after tomorrow:übermorgen, next week:nächste Woche, next month:nächsten Monat, "
    "this afternoon:heute Nachmittag, next year:nächstes Jahr, tomorrow evening:morgen Abend, "
    "tonight:heute Abend"
)
HABITS = _adverbs(
    "every day:jeden Tag, often:oft, rarely:selten, sometimes:manchmal, every morning:jeden Morgen, "
    "on Sundays:sonntags, every year:jedes Jahr, on Fridays:freitags, always:immer, usually:normalerweise, "
    "on weekends:am Wochenende",
    "often rarely sometimes always usually",
)
