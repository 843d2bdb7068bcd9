# ruff: noqa: E501
"""Hand-written sentence patterns of the demo corpus (pure data).

A line is ``English => German``. ``{slot}`` is filled with the same thing on both sides; ``{slot.dat}`` asks for a form
of it (the default is English on the left, the nominative on the right), ``[a/b]`` is a random choice, and lines with the
same English are German variants of each other. The slots are explained in ``values.slot``.

Clauses have four German fields, ``subject | finite verb | middle | end``, so that they can be put into main, inverted and
verb-final order; a separable prefix at the end is marked ``ab-``. ``@kind`` ends an English clause that takes a time
expression of that kind, and ``@`` is its place in the German middle field.
"""

CLAUSES = """
The train to {city} leaves from platform {num} @clock => der Zug nach {city} | fährt | @ von Gleis {num} | ab-
The night train from {city} arrives in {city2} @clock => der Nachtzug aus {city} | kommt | @ in {city2} | an-
The next flight from {city} to {city2} takes off @clock => der nächste Flug von {city} nach {city2} | startet | @ |
The next bus to {the_place} leaves @clock => der nächste Bus {the_place.zu} | fährt | @ | ab-
The trip from {city} to {city2} takes {duration} => die [Fahrt/Fahrt/Reise] von {city} nach {city2} | dauert | {duration} |
The flight from {city} to {city2} was {minutes} late @past => der Flug von {city} nach {city2} | hatte | @ {minutes} Verspätung |
A ticket from {city} to {city2} costs {fare} => eine Fahrkarte von {city} nach {city2} | kostet | {fare} |
The distance between {city} and {city2} is {km} => die Entfernung zwischen {city} und {city2} | beträgt | {km} |
The road between {city} and {city2} is closed because of an accident => die Straße zwischen {city} und {city2} | ist | wegen eines Unfalls | gesperrt
{person} flew from {country} to {country2} @past => {person} | ist | @ {country.frm} {country2.to} | geflogen
{person} is spending {few} weeks in {country} => {person} | verbringt | {few} Wochen {country.loc} |
{person} has been living in {country} since {year} => {person} | lebt | seit {year} {country.loc} |
{person} has been living in {city} for {years} => {person} | wohnt | seit {years.dat} in {city} |
{person} has been learning {language} for {years} => {person} | lernt | seit {years.dat} {language} |
{person} has been working for {a_organization} in {country} for {years} => {person} | arbeitet | seit {years.dat} für {a_organization.acc} {country.loc} |
{person} was born in {city} @birth => {person} | wurde | @ in {city} | geboren
{person} is {age} years old => {person} | ist | {age} Jahre alt |
{person} speaks {language}, {language2}, and {language3} => {person} | spricht | {language}, {language2} und {language3} |
The book was translated from {language} into {language2} @year => das Buch | wurde | @ {language.frm} {language2.to} | übersetzt
The instructions are available in {languages} => die Anleitung | ist | auf {languages} | erhältlich
More and more people in {country} are learning {language} => immer mehr Menschen {country.loc} | lernen | {language} |
The film is shown in {language} with subtitles in {language2} => der Film | wird | auf {language} mit Untertiteln auf {language2} | gezeigt
{the_event} takes place @future => {the_event} | findet | @ | statt-
{the_event} in {city} begins @future => {the_event} in {city} | beginnt | @ |
{the_event} in {city} begins @future => {the_event} in {city} | fängt | @ | an-
{the_event} in {city} lasted {duration} => {the_event} in {city} | hat | {duration} | gedauert
{the_event} ended @clock => {the_event} | endete | @ |
{the_event} was postponed from {weekday} to {weekday2} => {the_event} | wurde | von {weekday} auf {weekday2} | verschoben
{wordnum} people took part in {the_event} @past => {wordnum} Menschen | haben | @ {the_event.an} | teilgenommen
{wordnum} guests are expected at {the_event} => {wordnum} Gäste | werden | {the_event.zu} | erwartet
The exhibition runs from {early_day} to {late_date} => die Ausstellung | läuft | vom {early_day} bis zum {late_date} |
The contract is valid until {late_date} => der Vertrag | ist | bis zum {late_date} | gültig
{the_place} is open from {weekday} to {weekday2} between {opening} and {closing} => {the_place} | ist | von {weekday} bis {weekday2} zwischen {opening.bare} und {closing} | geöffnet
{the_place} is closed on {weekday}s => {the_place} | ist | {weekday.often} | geschlossen
{the_place} in {city} was opened @year => {the_place} in {city} | wurde | @ | eröffnet
{the_place} will be renovated from {early_month} to {late_month} {future_year} => {the_place} | wird | von {early_month} bis {late_month} {future_year} | renoviert
The office is on the {ordinal} floor => das Büro | ist | im {ordinal}en Stock |
The office is on the {ordinal} floor => das Büro | befindet | sich im {ordinal}en Stock |
{person} is taking the exam for the {nth} time => {person} | macht | die Prüfung zum {nth}en Mal |
{person} celebrates {his} {birthday} birthday @future => {person} | feiert | @ {his}en {birthday}en Geburtstag |
Prices in {country} rose by {percent} @period => die Preise {country.loc} | sind | @ um {percent} | gestiegen
Prices for {staple} and {staple2} fell by {percent} @period => die Preise für {staple.acc} und {staple2.acc} | sind | @ um {percent} | [gesunken/gefallen]
Exports to {country} increased by {percent} @period => die Exporte {country.to} | sind | @ um {percent} | gestiegen
Exports to {country} increased by {percent} @period => die Exporte {country.to} | haben | @ um {percent} | zugenommen
Sales of {the_organization} rose by {percent} to {money} => der Umsatz {the_organization.gen} | stieg | um {percent} auf {money} |
{the_organization} made a profit of {money} @year => {the_organization} | erzielte | @ einen Gewinn von {money} |
{the_organization} made a loss of {money} @year => {the_organization} | machte | @ einen Verlust von {money} |
{the_organization} is investing {money} in {a_place} in {city} => {the_organization} | investiert | {money} in {a_place.acc} in {city} |
{the_organization} employs {big} people in {country} => {the_organization} | beschäftigt | {country.loc} {big} Menschen |
{the_organization} will create {big} jobs in {city} => {the_organization} | wird | in {city} {big} Arbeitsplätze | schaffen
The unemployment rate in {country} is {percent} => die Arbeitslosenquote {country.loc} | liegt | bei {percent} |
About {million} people live in {country} => [etwa/etwa/rund] {million} Menschen | leben | {country.loc} |
More than {million} tourists visited {country} @year => mehr als {million} Touristen | haben | @ {country.acc} | besucht
{percent} of the customers are satisfied with {the_organization} => {percent} der Kunden | sind | mit {the_organization.dat} | zufrieden
The government of {country} agreed to the proposal @past => die Regierung {country.gen} | hat | dem Vorschlag @ | zugestimmt
The president of {country} is traveling to {country2} @future => der Präsident {country.gen} | reist | @ {country2.to} |
The foreign minister of {country} rejected the proposal @past => der Außenminister {country.gen} | hat | den Vorschlag @ | abgelehnt
{countries} signed the agreement @date => {countries} | haben | das Abkommen @ | unterzeichnet
The delegation will visit {countries} @future => die Delegation | wird | @ {countries.acc} | besuchen
{the_device} costs {price} => {the_device} | kostet | {price} |
{pl_furniture} cost {price} @year => {pl_furniture} | haben | @ {price} | gekostet
{person} paid {price} for {a_vehicle} @past => {person} | hat | @ {price} für {a_vehicle.acc} | bezahlt
{person} bought {kilos} of {staple} and {pl_food} @past => {person} | hat | @ {kilos} {staple.acc} und {pl_food.acc} | gekauft
{person} needs {pl_food}, {grams} of {staple}, and {kilos} of {staple2} => {person} | braucht | {pl_food.acc}, {grams} {staple.acc} und {kilos} {staple2.acc} |
{the_clothes} is {percent} cheaper than last year => {the_clothes} | ist | um {percent} billiger als letztes Jahr |
{the_furniture} weighs {kilos} => {the_furniture} | wiegt | {kilos} |
{the_furniture} is {cm} long and {cm2} wide => {the_furniture} | ist | {cm} lang und {cm2} breit |
{the_device} is smaller and lighter than {a_device2} => {the_device} | ist | kleiner und leichter als {a_device2} |
{the_car} can reach a speed of {kmh} => {the_car} | kann | eine Geschwindigkeit von {kmh} | erreichen
The apartment with {few} rooms costs {rent} a month => die Wohnung mit {few} Zimmern | kostet | {rent} im Monat |
The house has an area of {area} => das Haus | hat | eine Fläche von {area} |
The new computer has {gigabytes} of memory => der neue Computer | hat | {gigabytes} Arbeitsspeicher |
The bridge in {city} is {meters} long => die Brücke in {city} | ist | {meters} lang |
{person} likes {the_clothes} => {the_clothes} | gefällt | {person.dat} |
{the_vehicle} belongs to {person} => {the_vehicle} | gehört | {person.dat} |
{person} does not like {the_furniture} => {the_furniture} | gefällt | {person.dat} nicht |
The temperature in {city} will rise to {temperature} @future => die Temperatur in {city} | wird | @ auf {temperature} | steigen
The temperature in {city} fell to {temperature} @past => die Temperatur in {city} | ist | @ auf {temperature} | [gesunken/gefallen]
It will rain in {city} @future => es | wird | @ in {city} | regnen
It snowed in {city} @past => es | hat | @ in {city} | geschneit
It is colder in {city} than in {city2} => es | ist | in {city} kälter als in {city2} |
It was {temperature} in {city} @past => es | waren | @ in {city} {temperature} |
The wind reached speeds of up to {wind} @past => der Wind | hat | @ Geschwindigkeiten von bis zu {wind} | erreicht
{millimeters} of rain fell in {city} @past => {millimeters} Regen | sind | @ in {city} | gefallen
The sun will shine in the north of {country} @future => die Sonne | wird | @ im Norden {country.gen} | scheinen
Heavy rain is expected in the south of {country} @future => starker Regen | wird | @ im Süden {country.gen} | erwartet
{person} always gets up @clock => {person} | steht | immer @ | auf-
{person} usually goes home @clock => {person} | geht | normalerweise @ nach Hause |
{person} will not be in the office @future => {person} | wird | @ nicht im Büro | sein
{person} would like to book a room for {few} nights => {person} | möchte | ein Zimmer für {few} Nächte | buchen
{person} has an appointment with {person2} @future => {person} | hat | @ einen Termin mit {person2.dat} |
"""

# Whole sentences, where the order of words stays as it is written. {it} stands for the first noun, {he} for the first
# person.
SENTENCES = """
{the_clothes} was too expensive, so {person} did not buy {it} => {the_clothes} war zu teuer, deshalb hat {person} {it.acc} nicht gekauft.
{person} bought {a_device} {ago}, but {it} is already broken => {person} hat {ago} {a_device.acc} gekauft, aber {it} ist [schon/bereits] kaputt.
{person} cannot find {the_object}, although {he} put {it} on the table => {person} kann {the_object.acc} nicht finden, obwohl {he} {it.acc} auf den Tisch gelegt hat.
{the_vehicle} is {few} years old, but {it} still runs very well => {the_vehicle} ist {few} Jahre alt, aber {it} fährt noch sehr gut.
{the_document} is so long that nobody wants to read {it} => {the_document} ist so lang, dass {it.acc} niemand lesen will.
{person} ordered {a_furniture} {ago}, but {it} has not arrived yet => {person} hat {ago} {a_furniture.acc} bestellt, aber {it} ist noch nicht angekommen.
{the_device} no longer works, so {person} wants to have {it} repaired => {the_device} funktioniert nicht mehr, deshalb will {person} {it.acc} reparieren lassen.
Because {the_furniture} was damaged, {person} sent {it} back => [Weil/Da] {the_furniture} beschädigt war, hat {person} {it.acc} zurückgeschickt.
Please send me {the_paper} by {late_date} => Bitte schicken Sie mir {the_paper.acc} bis zum {late_date}.
Please call me at {clock} or write me an e-mail => Bitte rufen Sie mich um {clock} an oder schreiben Sie mir eine E-Mail.
Please fill out the form and send it to {the_organization} by {early_day} => Bitte füllen Sie das Formular aus und schicken Sie es bis zum {early_day} an {the_organization.acc}.
Please bring your passport and {pl_paper} to {the_event} => Bitte bringen Sie Ihren Reisepass und {pl_paper.acc} {the_event.zu} mit.
Add {milliliters} of milk, {grams} of {staple}, and {few} eggs => Geben Sie {milliliters} Milch, {grams} {staple.acc} und {few} Eier hinzu.
How much does {the_clothes} cost? => Wie viel kostet {the_clothes}?
How long does the trip from {city} to {city2} take? => Wie lange dauert die [Fahrt/Fahrt/Reise] von {city} nach {city2}?
What time does the train from {city} arrive in {city2}? => Um wie viel Uhr kommt der Zug aus {city} in {city2} an?
When does {the_place} open on {weekday}? => Wann öffnet {the_place} am {weekday}?
Where can I buy {a_clothes} for less than {fare}? => Wo kann ich {a_clothes.acc} für weniger als {fare} kaufen?
Can you tell me where {the_place} is? => Können Sie mir sagen, wo {the_place} ist?
Do you know how many people live in {country}? => Wissen Sie, wie viele Menschen {country.loc} leben?
Do you have {the_clothes} in a smaller size? => Haben Sie {the_clothes.acc} in einer kleineren Größe?
Customers who buy more than {few} books get a discount of {percent} => Kunden, die mehr als {few} Bücher kaufen, erhalten einen Rabatt von {percent}.
The later the train arrives in {city}, the more people wait for the bus to {the_place} => Je später der Zug in {city} ankommt, desto mehr Menschen warten auf den Bus {the_place.zu}.
Not only {person}, but also {person2} was in {country} {ago} => Nicht nur {person}, sondern auch {person2} war {ago} {country.loc}.
Neither {person} nor {person2} speaks {language} => Weder {person} noch {person2} spricht {language}.
Either {the_event} begins at {clock}, or {it} will be canceled => Entweder beginnt {the_event} um {clock}, oder {it} wird abgesagt.
If you buy the ticket before {early_day}, you save {fare} => Wenn Sie die Fahrkarte vor dem {early_day} kaufen, sparen Sie {fare}.
If {the_event} lasts longer than {duration}, {person} will miss the train to {city} => Wenn {the_event} länger als {duration} dauert, wird {person} den Zug nach {city} verpassen.
The sooner {person} signs the contract, the better => Je früher {person} den Vertrag unterschreibt, desto besser.
While {person} was reading {the_document}, {person2} was cooking the soup => Während {person} {the_document.acc} las, kochte {person2} die Suppe.
Since {person} moved to {city}, {he} has been working for {a_organization} => Seit {person} nach {city} gezogen ist, arbeitet {he} für {a_organization.acc}.
{person} would have bought {the_vehicle} if {it} had been cheaper => {person} hätte {the_vehicle.acc} gekauft, wenn {it} billiger gewesen wäre.
If {person} had more money, {he} would travel to {country} => Wenn {person} mehr Geld hätte, würde {he} {country.to} reisen.
{person} grew up in {country}, but today {he} lives in {city} => {person} ist {country.loc} aufgewachsen, aber heute wohnt {he} in {city}.
There are {pl_furniture} and {pl_furniture2} in {the_place} => {the_place.in} gibt es {pl_furniture.acc} und {pl_furniture2.acc}.
"""

# Why somebody did not do or does not do something, and why they do; {he} is the subject of the main clause.
HINDRANCES_PAST = """
{he} {he.was} ill => {he} | {he.war} | krank |
{he} had no time => {he} | {he.hatte} | keine Zeit |
{he} had overslept => {he} | {he.hatte} | | verschlafen
{he} had forgotten {his} key => {he} | {he.hatte} | {his}en Schlüssel | vergessen
{he} had to work until {closing} => {he} | {he.musste} | bis {closing} | arbeiten
{he} had lost {his} passport => {he} | {he.hatte} | {his}en Reisepass | verloren
the train was {minutes} late => der Zug | hatte | {minutes} Verspätung |
the weather was bad => das Wetter | war | schlecht |
there was too much traffic => es | gab | zu viel Verkehr |
it rained all day => es | hat | den ganzen Tag | geregnet
nobody had told {he.obj} about it => niemand | hatte | {he.dat} davon | erzählt
the price had risen by {percent} => der Preis | war | um {percent} | gestiegen
it was {temperature} outside => es | waren | draußen {temperature} |
"""
HINDRANCES_PRESENT = """
{he} {he.has} no time => {he} | {he.hat} | keine Zeit |
{he} {he.has} to work until {closing} => {he} | {he.muss} | bis {closing} | arbeiten
{he} {he.does} not have enough money => {he} | {he.hat} | nicht genug Geld |
{he} {he.is} ill => {he} | {he.ist} | krank |
the weather is bad => das Wetter | ist | schlecht |
the prices have risen by {percent} => die Preise | sind | um {percent} | gestiegen
there are only {few} seats left => es | gibt | nur noch {few} Plätze |
the last train leaves at {clock} => der letzte Zug | fährt | um {clock} | ab-
the doctor has forbidden it => der Arzt | hat | es | verboten
"""
MOTIVES_PAST = """
{person} had asked {he.obj} to do so => {person} | hatte | {he.acc} darum | gebeten
the doctor had recommended it => der Arzt | hatte | es | empfohlen
it was important to {he.obj} => es | war | {he.dat} wichtig |
{he} had promised it => {he} | {he.hatte} | es | versprochen
{he} wanted to surprise {person} => {he} | {he.wollte} | {person.acc} | überraschen
"""
MOTIVES_PRESENT = """
{person} has recommended it => {person} | hat | es | empfohlen
it is important to {he.obj} => es | ist | {he.dat} wichtig |
{he} {he.has} promised it => {he} | {he.hat} | es | versprochen
{person} has asked {he.obj} to do so => {person} | hat | {he.acc} darum | gebeten
"""
CONDITIONS = """
it does not rain => es | regnet | nicht |
the train arrives on time => der Zug | kommt | pünktlich | an-
nobody has any objections => niemand | hat | etwas dagegen |
the price does not rise above {price} => der Preis | steigt | nicht über {price} |
the temperature does not fall below {temperature} => die Temperatur | sinkt | nicht unter {temperature} |
{the_place} is still open => {the_place} | ist | noch geöffnet |
"""
TURNING_POINTS = """
the weather gets better => das Wetter | wird | besser |
{he} {he.has} enough time => {he} | {he.hat} | genug Zeit |
{he} {he.has} enough money => {he} | {he.hat} | genug Geld |
{person} agrees => {person} | ist | einverstanden |
{person} arrives in {city} => {person} | kommt | in {city} | an-
{the_place} opens => {the_place} | öffnet | |
{the_document} is finished => {the_document} | ist | fertig |
"""

# What stands before a "that" clause, and before a main clause with inversion.
REPORTS = """
{person} said that => {person} hat gesagt, dass
{person} hopes that => {person} hofft, dass
{person} told {person2} that => {person} hat {person2.dat} erzählt, dass
{person} is convinced that => {person} ist davon überzeugt, dass
{person} claims that => {person} behauptet, dass
{the_authority} announced @past that => {the_authority} hat @ mitgeteilt, dass
{the_authority} confirmed @past that => {the_authority} hat @ bestätigt, dass
The newspaper reports that => Die Zeitung berichtet, dass
The report shows that => Der Bericht zeigt, dass
I think that => Ich [glaube/glaube/denke], dass
I read in the newspaper that => Ich habe in der Zeitung gelesen, dass
It is true that => Es stimmt, dass
Everyone knows that => Jeder weiß, dass
Nobody knows whether => Niemand weiß, ob
It is not yet certain whether => Es ist noch nicht sicher, ob
{person} asked {person2} whether => {person} hat {person2.acc} gefragt, ob
"""
OPENERS = """
Unfortunately, => leider
Fortunately, => zum Glück
Perhaps => vielleicht
For this reason, => aus diesem Grund
Therefore, => [deshalb/deshalb/daher]
Despite the bad weather, => trotz des schlechten Wetters
Because of the strike, => wegen des Streiks
According to {the_authority}, => laut {the_authority.dat}
According to {person}, => laut {person.dat}
In the opinion of {person}, => nach Meinung {person.gen}
As expected, => wie erwartet
After all, => schließlich
"""

# Said of something with a relative clause, by class of noun; {thing.costs} and the like agree with it.
_GOODS = """
{thing} {thing.is} very expensive => {thing} {thing.ist} sehr teuer
{thing} {thing.was} too expensive => {thing} {thing.war} zu teuer
{thing} {thing.costs} {price} => {thing} {thing.kostet} {price}
{thing} {thing.belongs} to {person} => {thing} {thing.gehört} {person.dat}
{thing} {thing.was} a gift from {person} => {thing} {thing.war} ein Geschenk {person.von}
"""
_TEXTS = """
{thing} {thing.is} very interesting => {thing} {thing.ist} sehr interessant
{thing} {thing.was} {few} pages long => {thing} {thing.war} {few} Seiten lang
{thing} {thing.is} on the table => {thing} {thing.liegt} auf dem Tisch
{thing} {thing.has} not been translated yet => {thing} {thing.ist} noch nicht übersetzt worden
"""
COMMENTS = {
    "vehicle": _GOODS,
    "device": _GOODS,
    "furniture": _GOODS,
    "clothes": _GOODS,
    "object": _GOODS,
    "document": _TEXTS,
}

# What is followed by an infinitive.
INTENTIONS = """
{who} promised to => {who} {who.hat} versprochen
{who} decided to => {who} {who.hat} beschlossen
{who} forgot to => {who} {who.hat} vergessen
{who} tried to => {who} {who.hat} versucht
{who} started to => {who} {who.hat} [begonnen/begonnen/angefangen]
{who} {who.has} the opportunity to => {who} {who.hat} die [Möglichkeit/Möglichkeit/Gelegenheit]
{who} {who.is} not able to => {who} {who.ist} nicht in der Lage
{who} {who.is} ready to => {who} {who.ist} bereit
{who} {who.has} no time to => {who} {who.hat} keine Zeit
{person} asked {person2} to => {person} hat {person2.acc} gebeten
{person} advised {person2} to => {person} hat {person2.dat} geraten
{person} allowed {person2} to => {person} hat {person2.dat} erlaubt
"""
