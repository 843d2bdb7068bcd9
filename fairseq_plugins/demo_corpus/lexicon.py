# ruff: noqa: E501
"""Hand-written words of the demo corpus: nouns, adjectives, verbs, names (pure data).

Notation. Noun rows are ``english[/plural] gender German/plural``, with gender m, f or n, ``w`` after the
gender for nouns with weak declension (der Kunde, den Kunden), ``-`` for "no plural" and ``~`` before a second
German noun that may stand for the same English one. Verb rows are explained at ``VERBS``.
"""

NOUNS: dict[str, str] = {
    "person": """
        man/men m Mann/Männer
        woman/women f Frau/Frauen
        doctor m Arzt/Ärzte ~ f Ärztin/Ärztinnen
        teacher m Lehrer/Lehrer ~ f Lehrerin/Lehrerinnen
        student mw Student/Studenten
        neighbor mw Nachbar/Nachbarn
        customer mw Kunde/Kunden
        colleague mw Kollege/Kollegen
        journalist mw Journalist/Journalisten
        tourist mw Tourist/Touristen
        assistant mw Assistent/Assistenten
        engineer m Ingenieur/Ingenieure
        waiter m Kellner/Kellner
        waitress/waitresses f Kellnerin/Kellnerinnen
        nurse f Krankenschwester/Krankenschwestern
        actress/actresses f Schauspielerin/Schauspielerinnen
        saleswoman/saleswomen f Verkäuferin/Verkäuferinnen
        lawyer m Anwalt/Anwälte
        driver m Fahrer/Fahrer
        guest m Gast/Gäste
        salesman/salesmen m Verkäufer/Verkäufer
        businessman/businessmen m Geschäftsmann/Geschäftsleute
    """,
    "family": """
        brother m Bruder/Brüder
        sister f Schwester/Schwestern
        mother f Mutter/Mütter
        father m Vater/Väter
        daughter f Tochter/Töchter
        son m Sohn/Söhne
        aunt f Tante/Tanten
        uncle m Onkel/Onkel
        grandmother f Großmutter/Großmütter
        boss/bosses m Chef/Chefs
    """,
    "document": """
        letter m Brief/Briefe
        report m Bericht/Berichte
        article m Artikel/Artikel
        e-mail f E-Mail/E-Mails
        book n Buch/Bücher
        message f Nachricht/Nachrichten
        text m Text/Texte
    """,
    "paper": """
        contract m Vertrag/Verträge
        form n Formular/Formulare
        invoice f Rechnung/Rechnungen
        application m Antrag/Anträge
    """,
    "vehicle": """
        car n Auto/Autos
        bicycle n Fahrrad/Fahrräder
        motorcycle n Motorrad/Motorräder
        truck m Lastwagen/Lastwagen
        boat n Boot/Boote
    """,
    "transport": """
        train m Zug/Züge
        bus/buses m Bus/Busse
        ferry/ferries f Fähre/Fähren
        streetcar f Straßenbahn/Straßenbahnen
        taxi n Taxi/Taxis
    """,
    "clothes": """
        jacket f Jacke/Jacken
        dress/dresses n Kleid/Kleider
        coat m Mantel/Mäntel
        shirt n Hemd/Hemden
        hat m Hut/Hüte
        skirt m Rock/Röcke
        sweater m Pullover/Pullover
        scarf/scarves m Schal/Schals
        blouse f Bluse/Blusen
    """,
    "device": """
        computer m Computer/Computer
        phone n Telefon/Telefone
        camera f Kamera/Kameras
        printer m Drucker/Drucker
        television m Fernseher/Fernseher
        lamp f Lampe/Lampen
        radio n Radio/Radios
        coffee_machine f Kaffeemaschine/Kaffeemaschinen
        washing_machine f Waschmaschine/Waschmaschinen
    """,
    "object": """
        key m Schlüssel/Schlüssel
        bag f Tasche/Taschen
        suitcase m Koffer/Koffer
        umbrella m Regenschirm/Regenschirme
        ticket f Fahrkarte/Fahrkarten
        wallet m Geldbeutel/Geldbeutel
        passport m Reisepass/Reisepässe
        gift n Geschenk/Geschenke
        picture n Bild/Bilder
    """,
    "furniture": """
        table m Tisch/Tische
        chair m Stuhl/Stühle
        bed n Bett/Betten
        wardrobe m Kleiderschrank/Kleiderschränke
        sofa n Sofa/Sofas
        shelf/shelves n Regal/Regale
        mirror m Spiegel/Spiegel
        desk m Schreibtisch/Schreibtische
        carpet m Teppich/Teppiche
    """,
    "food": """
        apple m Apfel/Äpfel
        cake m Kuchen/Kuchen
        egg n Ei/Eier
        roll n Brötchen/Brötchen
        pear f Birne/Birnen
        lemon f Zitrone/Zitronen
        potato/potatoes f Kartoffel/Kartoffeln
        tomato/tomatoes f Tomate/Tomaten
        sausage f Wurst/Würste
        salad m Salat/Salate
    """,
    "staple": """
        rice m Reis/-
        cheese m Käse/-
        flour n Mehl/-
        sugar m Zucker/-
        butter f Butter/-
        coffee m Kaffee/-
        meat n Fleisch/-
        honey m Honig/-
    """,
    "place": """
        museum n Museum/Museen
        hotel n Hotel/Hotels
        restaurant n Restaurant/Restaurants
        school f Schule/Schulen
        hospital n Krankenhaus/Krankenhäuser
        office n Büro/Büros
        shop m Laden/Läden ~ n Geschäft/Geschäfte
        library/libraries f Bibliothek/Bibliotheken
        factory/factories f Fabrik/Fabriken
        theater n Theater/Theater
        university/universities f Universität/Universitäten
        pharmacy/pharmacies f Apotheke/Apotheken
        bakery/bakeries f Bäckerei/Bäckereien
        supermarket m Supermarkt/Supermärkte
        town_hall n Rathaus/Rathäuser
        church/churches f Kirche/Kirchen
        park m Park/Parks
        swimming_pool n Schwimmbad/Schwimmbäder
    """,
    "event": """
        meeting f Besprechung/Besprechungen ~ f Sitzung/Sitzungen
        concert n Konzert/Konzerte
        lecture m Vortrag/Vorträge
        exhibition f Ausstellung/Ausstellungen
        course m Kurs/Kurse
        conference f Konferenz/Konferenzen
        wedding f Hochzeit/Hochzeiten
        performance f Vorstellung/Vorstellungen
        party/parties n Fest/Feste
        exam f Prüfung/Prüfungen
    """,
    "journey": """
        trip f Reise/Reisen ~ f Fahrt/Fahrten
        excursion m Ausflug/Ausflüge
    """,
    "organization": """
        company/companies n Unternehmen/Unternehmen ~ f Firma/Firmen
        bank f Bank/Banken
        airline f Fluggesellschaft/Fluggesellschaften
        publisher m Verlag/Verlage
        insurance_company/insurance_companies f Versicherung/Versicherungen
        supermarket_chain f Supermarktkette/Supermarktketten
        car_manufacturer m Autohersteller/Autohersteller
        energy_company/energy_companies m Energiekonzern/Energiekonzerne
    """,
    "authority": """
        government f Regierung/Regierungen
        ministry/ministries n Ministerium/Ministerien
        city_council m Stadtrat/Stadträte
        association m Verein/Vereine
    """,
}

# English adjective and German stem, in the order in which several would stand before an English noun.
ADJECTIVES: dict[str, str] = {
    "person": "nice nett, friendly freundlich, polite höflich, experienced erfahren, tall groß, young jung, old alt, "
    "new neu",
    "document": "important wichtig, interesting interessant, long lang, short kurz, new neu",
    "paper": "important wichtig, new neu, old alt",
    "vehicle": "beautiful schön, expensive teur, cheap billig, big groß, small klein, new neu, old alt, used gebraucht, "
    "red rot, blue blau, black schwarz, white weiß, green grün",
    "transport": "full voll, next nächst, last letzt",
    "clothes": "beautiful schön, elegant elegant, expensive teur, cheap billig, warm warm, long lang, short kurz, "
    "new neu, old alt, red rot, blue blau, black schwarz, white weiß, green grün, dark dunkl",
    "device": "expensive teur, cheap billig, small klein, modern modern, new neu, old alt, used gebraucht, "
    "black schwarz, white weiß",
    "object": "beautiful schön, expensive teur, big groß, small klein, new neu, old alt, red rot, black schwarz",
    "furniture": "comfortable bequem, beautiful schön, expensive teur, cheap billig, big groß, small klein, new neu, "
    "old alt, white weiß, brown braun, dark dunkl",
    "food": "good gut, fresh frisch, big groß, small klein",
    "place": "beautiful schön, big groß, small klein, modern modern, new neu, old alt",
    "event": "important wichtig, interesting interessant, long lang, short kurz, last letzt, next nächst",
    "journey": "interesting interessant, expensive teur, long lang, short kurz, last letzt, next nächst",
    "organization": "successful erfolgreich, well-known bekannt, big groß, small klein, young jung, new neu",
}
# Of each group a noun takes one at most.
EXCLUSIVE_ADJECTIVES = (
    "expensive cheap",
    "big small long short tall",
    "new old young modern used",
    "red blue black white green brown dark",
    "nice friendly polite experienced",
    "next last",
    "good fresh",
    "beautiful elegant comfortable",
    "important interesting successful",
)
DEFINITE_ADJECTIVES = ("next", "last")  # never with "a", "my", numbers
NATIONAL = "de en fr it es pl tr sv da ru el cs hu pt ja zh ko nl"  # CLDR languages, used as adjectives
NATIONAL_CLASSES = ("person", "vehicle", "furniture", "organization", "document")

# A row: English[/past/participle] particle... ; infinitive present(3rd) participle[ sein] ; complement ; objects
# [; flags].
# A prefix that separates is marked an|kommen (present and participle are then given without it). Complements:
# acc, dat, dat+acc, a preposition with its case (auf+acc), "goal" (nach Rom, in die Schweiz), "source", "loc".
# English "to" after a comma: verbs of dat+acc that take "something to somebody". Flags: sich (reflexive), place
# (may take "in Rome"), by (may take "by train"), org (subjects are organisations), stative (present only), mishap
# (no modal verbs and questions), city (goes to cities only).
VERBS = """
buy/bought/bought ; kaufen kauft gekauft ; acc ; clothes device furniture vehicle object gift ; place
sell/sold/sold ; verkaufen verkauft verkauft ; acc ; vehicle furniture device picture ; place
read/read/read ; lesen liest gelesen ; acc ; document paper
write/wrote/written ; schreiben schreibt geschrieben ; acc ; document ; place
translate ; übersetzen übersetzt übersetzt ; acc ; document
sign ; unterschreiben unterschreibt unterschrieben ; acc ; paper
check ; überprüfen überprüft überprüft ; acc ; paper report device
fill/filled/filled out ; aus|füllen füllt gefüllt ; acc ; form application
print/printed/printed out ; aus|drucken druckt gedruckt ; acc ; document paper
find/found/found ; finden findet gefunden ; acc ; object ; place
lose/lost/lost ; verlieren verliert verloren ; acc ; object ; place mishap
forget/forgot/forgotten ; vergessen vergisst vergessen ; acc ; object ; place mishap
look for ; suchen sucht gesucht ; acc ; object place ;
repair ; reparieren repariert repariert ; acc ; vehicle device
clean ; reinigen reinigt gereinigt ; acc ; carpet coat jacket
use ; benutzen benutzt benutzt ; acc ; device
turn/turned/turned on ; ein|schalten schaltet geschaltet ; acc ; device
turn/turned/turned off ; aus|schalten schaltet geschaltet ; acc ; device
order ; bestellen bestellt bestellt ; acc ; device furniture book clothes
pay/paid/paid ; bezahlen bezahlt bezahlt ; acc ; invoice
eat/ate/eaten ; essen isst gegessen ; acc ; food ; place
wear/wore/worn ; tragen trägt getragen ; acc ; clothes
try/tried/tried on ; an|probieren probiert probiert ; acc ; clothes
photograph ; fotografieren fotografiert fotografiert ; acc ; person place
see/saw/seen ; sehen sieht gesehen ; acc ; person family ; place
meet/met/met ; treffen trifft getroffen ; acc ; person family ; place
visit ; besuchen besucht besucht ; acc ; person family museum theater exhibition
invite ; ein|laden lädt geladen ; acc ; person family
call ; an|rufen ruft gerufen ; acc ; person family
pick/picked/picked up ; ab|holen holt geholt ; acc ; person family object
know/knew/known ; kennen kennt gekannt ; acc ; person ; stative
support ; unterstützen unterstützt unterstützt ; acc ; person family association
help ; helfen hilft geholfen ; dat ; person family
thank ; danken dankt gedankt ; dat ; person family
answer ; antworten antwortet geantwortet ; dat ; person family
trust ; vertrauen vertraut vertraut ; dat ; person family ; stative
give/gave/given ; geben gibt gegeben ; dat+acc ; document paper object
show/showed/shown ; zeigen zeigt gezeigt ; dat+acc ; document paper object place
send/sent/sent ; schicken schickt geschickt ; dat+acc ; document paper gift
lend/lent/lent ; leihen leiht geliehen ; dat+acc ; car bicycle camera book umbrella
bring/brought/brought ; bringen bringt gebracht ; dat+acc ; document object
explain, to ; erklären erklärt erklärt ; dat+acc ; paper text
recommend, to ; empfehlen empfiehlt empfohlen ; dat+acc ; book hotel restaurant museum exhibition
return, to ; zurück|geben gibt gegeben ; dat+acc ; book key bag camera
wait for ; warten wartet gewartet ; auf+acc ; person family transport
talk about ; sprechen spricht gesprochen ; über+acc ; event journey document contract
think/thought/thought about ; nach|denken denkt gedacht ; über+acc ; event journey contract text
ask/asked/asked about ; fragen fragt gefragt ; nach+dat ; event contract invoice
complain about ; beschweren beschwert beschwert ; über+acc ; device place invoice neighbor ; sich
look forward to ; freuen freut gefreut ; auf+acc ; event journey ; sich mishap
remember ; erinnern erinnert erinnert ; an+acc ; person event ; sich
prepare for ; vor|bereiten bereitet bereitet ; auf+acc ; event ; sich
register for ; an|melden meldet gemeldet ; für+acc ; course exam conference ; sich
take/took/taken part in ; teil|nehmen nimmt genommen ; an+dat ; meeting course conference exam journey
organize ; organisieren organisiert organisiert ; acc ; event journey
cancel/canceled/canceled ; ab|sagen sagt gesagt ; acc ; event journey
postpone ; verschieben verschiebt verschoben ; acc ; meeting course conference wedding performance trip exam
prepare ; vor|bereiten bereitet bereitet ; acc ; meeting lecture exhibition wedding trip
miss ; verpassen verpasst verpasst ; acc ; train bus ferry performance ; mishap
take/took/taken ; nehmen nimmt genommen ; acc ; transport
work for ; arbeiten arbeitet gearbeitet ; für+acc ; organization ; place
live ; wohnen wohnt gewohnt ; loc ;
travel/traveled/traveled ; reisen reist gereist sein ; goal ; ; by
drive/drove/driven ; fahren fährt gefahren sein ; goal ; ; city
fly/flew/flown ; fliegen fliegt geflogen sein ; goal ;
move ; ziehen zieht gezogen sein ; goal ;
arrive ; an|kommen kommt gekommen sein ; loc ;
stay ; bleiben bleibt geblieben sein ; loc ;
come/came/come back ; zurück|kommen kommt gekommen sein ; source ;
open ; eröffnen eröffnet eröffnet ; acc ; factory hotel school restaurant shop museum ; org place
close ; schließen schließt geschlossen ; acc ; factory hotel school shop theater ; org place
build/built/built ; bauen baut gebaut ; acc ; factory hotel school hospital town_hall ; org place
hire ; ein|stellen stellt gestellt ; acc ; engineer lawyer driver assistant ; org
announce ; an|kündigen kündigt gekündigt ; acc ; conference exhibition concert course ; org
publish ; veröffentlichen veröffentlicht veröffentlicht ; acc ; report article text ; org
"""

# Time they speak of; English auxiliary, or finite forms (plural, third person) and base of one that needs
# "do"; German singular and plural.
MODALS: dict[str, tuple[str, str, str, str, str, str, str]] = {
    "must": ("future", "", "have to", "has to", "have to", "muss", "müssen"),
    "can": ("future", "can", "", "", "", "kann", "können"),
    "should": ("future", "should", "", "", "", "sollte", "sollten"),
    "want": ("future", "", "want to", "wants to", "want to", "will", "wollen"),
    "like": ("future", "would", "like to", "like to", "like to", "möchte", "möchten"),
    "had": ("past", "", "had to", "had to", "have to", "musste", "mussten"),
    "could": ("past", "could", "", "", "", "konnte", "konnten"),
    "wanted": ("past", "", "wanted to", "wanted to", "want to", "wollte", "wollten"),
}

WOMEN = "Anna Maria Laura Julia Emma Clara Nina Lena Eva Hannah Martha"
MEN = "Peter Paul Martin David Jakob Anton Oliver Simon Robert Leon Karl Stefan"
SURNAMES = "Weber Fischer Becker Schneider Keller Wagner Hoffmann Richter Wolf Krüger Vogel Braun Huber Lehmann"

CITIES = """
    Berlin Hamburg Munich/München Cologne/Köln Frankfurt Stuttgart Dresden Nuremberg/Nürnberg
    Hanover/Hannover Bremen Leipzig Vienna/Wien Salzburg Graz Zurich/Zürich Geneva/Genf Bern Basel Paris
    Lyon Nice/Nizza Strasbourg/Straßburg London Edinburgh Dublin Rome/Rom Milan/Mailand Venice/Venedig
    Naples/Neapel Florence/Florenz Turin Madrid Barcelona Seville/Sevilla Lisbon/Lissabon Porto
    Brussels/Brüssel Antwerp/Antwerpen Amsterdam Rotterdam Copenhagen/Kopenhagen Stockholm
    Gothenburg/Göteborg Oslo Helsinki Warsaw/Warschau Krakow/Krakau Prague/Prag Budapest
    Bucharest/Bukarest Sofia Athens/Athen Belgrade/Belgrad Zagreb Istanbul Ankara Moscow/Moskau Kyiv/Kiew
    Riga Vilnius Tokyo/Tokio Beijing/Peking Seoul Cairo/Kairo Boston Chicago Toronto Montreal Sydney
    Melbourne
"""

# Territories without article in German (CLDR codes); names come from CLDR.
TERRITORIES = """
    AF AL AM AO AR AT AU AZ BD BE BG BO BR BW BY CA CL CM CN CO CR CU CZ DE DK DZ EC EE EG ER ES ET FI FR
    GE GH GR GT HN HR HU ID IE IL IN IS IT JM JO JP KE KG KH KR KZ LA LI LT LU LV LY MA ME MG MK ML MX MY
    MZ NA NG NI NO NP NZ PA PE PK PL PT PY RO RS RU RW SA SE SG SI SO SY TH TJ TM TN TW TZ UG UY UZ VE VN
    ZA ZM ZW
"""
# code: English article, gender (p: plural), German after "der/die/das" in nominative and accusative, in
# dative, in genitive
TERRITORIES_WITH_ARTICLE: dict[str, tuple[str, str, str, str, str]] = {
    "CH": ("", "f", "Schweiz", "Schweiz", "Schweiz"),
    "TR": ("", "f", "Türkei", "Türkei", "Türkei"),
    "SK": ("", "f", "Slowakei", "Slowakei", "Slowakei"),
    "UA": ("", "f", "Ukraine", "Ukraine", "Ukraine"),
    "MN": ("", "f", "Mongolei", "Mongolei", "Mongolei"),
    "DO": ("the ", "f", "Dominikanische Republik", "Dominikanischen Republik", "Dominikanischen Republik"),
    "IQ": ("", "m", "Irak", "Irak", "Irak"),
    "IR": ("", "m", "Iran", "Iran", "Iran"),
    "LB": ("", "m", "Libanon", "Libanon", "Libanon"),
    "SD": ("", "m", "Sudan", "Sudan", "Sudan"),
    "YE": ("", "m", "Jemen", "Jemen", "Jemen"),
    "GB": ("the ", "n", "Vereinigte Königreich", "Vereinigten Königreich", "Vereinigten Königreichs"),
    "US": ("the ", "p", "Vereinigten Staaten", "Vereinigten Staaten", "Vereinigten Staaten"),
    "NL": ("the ", "p", "Niederlande", "Niederlanden", "Niederlande"),
    "PH": ("the ", "p", "Philippinen", "Philippinen", "Philippinen"),
    "AE": (
        "the ",
        "p",
        "Vereinigten Arabischen Emirate",
        "Vereinigten Arabischen Emiraten",
        "Vereinigten Arabischen Emirate",
    ),
    "MV": ("the ", "p", "Malediven", "Malediven", "Malediven"),
    "SC": ("the ", "p", "Seychellen", "Seychellen", "Seychellen"),
}
ISLANDS = ("PH", "MV", "SC")  # auf den Philippinen, not in
LANGUAGES = """
    ar bg bn ca cs cy da de el en es et eu fa fi fr ga gl he hr hu hy id is it ja ka kk ko lt lv mk mn mt
    ne nl no pl pt ro ru sk sl sq sr sv th tr uk vi zh
"""
