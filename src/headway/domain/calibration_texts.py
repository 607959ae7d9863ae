"""The texts on which schemes are calibrated by default, with their language. All written for headway.

Other texts than those on which quality is measured, of as many kinds as a chat model meets. A change of one letter
changes the digest of every artifact that was calibrated on them.
"""

CALIBRATION_TEXTS: tuple[tuple[str, str], ...] = (
    # Prose.
    (
        "en",
        (
            "The lighthouse had been without a keeper for thirty years when Elin bought it. The lamp still turned, "
            "driven by a motor the size of a loaf, but the rooms below smelled of salt and old rope. On her first "
            "night she slept badly. Toward four in the morning the fog came in and the horn began to sound, twice a "
            "minute, so deep that the cups on the shelf answered. She got up, made tea, and found that she was "
            "smiling. Nobody had told her that a house could breathe."
        ),
    ),
    (
        "en",
        (
            "My grandfather repaired clocks in a shop so narrow that two customers could not pass each other. He "
            "never wrote anything down. When a watch came in he held it to his ear, nodded, and put it into one of "
            "forty little drawers, and weeks later he would take out the right one without looking. After he died we "
            "opened all the drawers. In each lay a scrap of paper with a drawing of a face, and under it, in pencil, "
            "what the owner had said on the day."
        ),
    ),
    (
        "en",
        (
            "It had not rained since April, and the river had shrunk to a chain of green pools. Boys walked across "
            "where the ferry used to run. In the evenings the whole village sat on the bank, as if the water might "
            "come back sooner when it was watched. Old Marek said that he had seen it lower, in the year of the "
            "comet, but Marek said that about everything. Then one night the dogs began to bark all at once, and we "
            "heard, far up the valley, a sound like a crowd of people clapping."
        ),
    ),
    (
        "en",
        (
            "The translator worked best in trains. At home the telephone rang, the cat asked for the door, and every "
            "sentence looked wrong by noon. Between two cities, with a table that folded out of the seat in front of "
            "her and nothing to see but wet fields, she could hold a whole paragraph in her head and turn it slowly "
            "until it caught the light. The conductors knew her. They no longer asked where she was going, since the "
            "honest answer was page two hundred and twelve."
        ),
    ),
    (
        "en",
        (
            "Nobody remembered who had planted the pear tree in the middle of the car park. The engineers had drawn "
            "their white lines around it, and each spring it dropped petals on the roofs of forty grey cars. When "
            "the company moved away the asphalt cracked, thistles came up along the lines, and the tree, which had "
            "never been pruned, grew wide and heavy. The children who climbed over the fence in September were "
            "surprised to find that the fruit was sweet."
        ),
    ),
    # Explanation.
    (
        "en",
        (
            "A refrigerator does not make cold; it moves heat. A liquid with a very low boiling point is pressed "
            "through a narrow valve into the tubes behind the shelves. There the pressure drops, the liquid "
            "evaporates, and in doing so it takes heat from the food. The compressor sucks in the gas, squeezes it "
            "until it is hot, and sends it through the grille at the back, where it gives that heat to the kitchen "
            "and becomes liquid again. This is why an open refrigerator warms the room."
        ),
    ),
    (
        "en",
        (
            "Vaccines work because the immune system has a memory. When a harmless part of a virus enters the body, "
            "a few of the many white blood cells happen to fit its surface, and these begin to multiply. Most of the "
            "copies disappear within weeks, but some remain for years. If the real virus arrives later, they "
            "recognise it at once, and antibodies are ready in hours rather than in days. The illness is then either "
            "mild or not noticed at all."
        ),
    ),
    (
        "en",
        (
            "Inflation is a general rise of prices, measured with a basket of goods that an average household buys. "
            "If the basket cost 400 euros last year and 412 this year, the rate is three percent. A single dear "
            "product does not make inflation; strawberries in winter are simply scarce. When all prices rise faster "
            "than wages, people can buy less with the same work, and when savings earn less interest than prices "
            "grow, money that is kept in a drawer slowly loses its worth."
        ),
    ),
    (
        "en",
        (
            "Glaciers move although ice is solid. Under its own weight the lower part of a thick sheet deforms like "
            "very stiff honey, and where meltwater reaches the bottom, the whole mass slides over the rock. A "
            "typical valley glacier advances by a hand's breadth a day. It carries stones frozen into its base, "
            "which scratch the bedrock in the direction of flow; from such marks one can still read, ten thousand "
            "years later, which way the ice once went."
        ),
    ),
    (
        "en",
        (
            "In a compiler the front end reads the source and builds a tree, the middle rewrites that tree into a "
            "simpler language, and the back end chooses instructions for one processor. Splitting the work this way "
            "pays off: with five languages and four processors one needs nine parts instead of twenty whole "
            "compilers. The price is that the language in the middle must be able to express everything the others "
            "need, and no more than can be analysed."
        ),
    ),
    # Instructions.
    (
        "en",
        (
            "To repot a houseplant, water it an hour before you begin. Choose a pot that is two fingers wider than "
            "the old one and has a hole in the bottom. Lay a shard over the hole and fill in a layer of fresh soil. "
            "Hold the plant at the base of its stem, turn the pot upside down, and tap the rim against the table. "
            "Loosen the roots with your fingers, cut off what is brown or soft, set the plant in the middle, and "
            "fill the gaps. Press gently, water once more, and keep it out of the sun for a week."
        ),
    ),
    (
        "en",
        (
            "Recipe for four people: Soak 250 g of lentils for two hours. Chop one onion, two carrots and a stick of "
            "celery, and fry them in three spoons of oil for ten minutes over low heat. Add the drained lentils, a "
            "bay leaf, a teaspoon of cumin and 900 ml of stock. Simmer for 35 minutes. Season with salt, pepper and "
            "the juice of half a lemon, and stir in a handful of parsley just before you serve. It tastes even "
            "better on the next day, but do not freeze it with the parsley."
        ),
    ),
    (
        "en",
        (
            "How to reset the router: 1. Make sure that all important downloads have finished. 2. Press the recessed "
            "button on the back with a paper clip and hold it for 15 seconds, until both lights blink orange. 3. "
            "Wait three minutes; do not unplug the device during this time. 4. Connect a laptop by cable and open "
            "http://192.168.1.1 in a browser. 5. Enter the password on the label, choose a new one of at least 12 "
            "characters, and restore the settings from the file that you saved before."
        ),
    ),
    (
        "en",
        (
            "Before every dive, check your partner's equipment from top to bottom. Is the cylinder open and the "
            "gauge at 200 bar? Does the jacket inflate and deflate? Are the weights in place, and can the buckle be "
            "opened with one hand? Breathe three times from both regulators while you watch the needle. Agree on the "
            "depth, the time of return and the signals. If either of you feels unwell, say so now. Nobody has ever "
            "regretted a dive that was called off on the beach."
        ),
    ),
    # Dialogue.
    (
        "en",
        (
            '"You are late," said the stage manager without looking up.\n"The bridge was closed."\n'
            '"Which bridge?"\n"The one between my bed and the door." Nora dropped her bag on a chair. "How long have '
            'I got?"\n"Four minutes. Your dress is being sewn back together, the king has lost his voice, and there '
            'is a pigeon in the second balcony."\n"So it is a normal evening."\n"No," he said. "On a normal evening '
            'the pigeon is in the orchestra."'
        ),
    ),
    (
        "en",
        (
            "Customer: I ordered two chairs, but I received one chair and a lamp.\nAgent: I am sorry about that. "
            "Could you give me the number on the delivery note?\nCustomer: It is 70-4418-B.\n"
            "Agent: Thank you. I can see what happened; two labels were swapped in the warehouse. The second chair "
            "will be with you on Thursday.\nCustomer: And the lamp?\nAgent: The driver will collect it, unless you "
            "would like to keep it for half the price.\nCustomer: Let me see how it looks at night, and I will call "
            "you back."
        ),
    ),
    (
        "en",
        (
            "User: Can you explain recursion without using code?\nAssistant: Imagine that you stand in a long queue "
            "and want to know your position. You cannot see the front, so you ask the person before you. She does "
            "not know either and asks the next one, and so on, until the question reaches the first person, who "
            "says: one. Each person adds one to the answer and passes it back. Everybody followed the same short "
            "rule, and the first person was the case that ended it.\nUser: And if nobody were first?\n"
            "Assistant: Then you would wait forever."
        ),
    ),
    (
        "en",
        (
            '"Tell me what you see," said the instructor.\n"Clouds. Grey ones, flat at the bottom."\n'
            '"And the wind?"\n"From the left. Twelve knots, perhaps fifteen."\n"Would you take off?"\n'
            'The student looked at the windsock, at the hills, and at the needle of the fuel gauge. "Yes," he said, '
            'and then: "No. Not with that edge of rain behind the ridge. I would wait for half an hour."\n'
            '"Good," she said, and unfolded two garden chairs. "That was the lesson for today."'
        ),
    ),
    # Program text and what belongs to it.
    (
        "en",
        (
            'import heapq\n\n\ndef shortest_paths(graph, start):\n    """Dijkstra: cost of the cheapest way from '
            '`start` to every node that can be reached."""\n    cost = {start: 0}\n    queue = [(0, start)]\n    '
            "while queue:\n        spent, node = heapq.heappop(queue)\n        if spent > cost[node]:\n            "
            "continue\n        for neighbour, weight in graph[node].items():\n            total = spent + "
            "weight\n            if total < cost.get(neighbour, float('inf')):\n                cost[neighbour] = "
            "total\n                heapq.heappush(queue, (total, neighbour))\n    return cost\n"
        ),
    ),
    (
        "en",
        (
            "SELECT c.name, COUNT(o.id) AS orders, ROUND(SUM(o.amount_cents) / 100.0, 2) AS revenue\n"
            "FROM customers AS c\nLEFT JOIN orders AS o ON o.customer_id = c.id AND o.placed_at >= DATE "
            "'2031-01-01'\nWHERE c.country IN ('DE', 'AT', 'CH')\nGROUP BY c.name\nHAVING COUNT(o.id) > 3\n"
            "ORDER BY revenue DESC NULLS LAST\nLIMIT 20;\n-- Customers without an order in the period have a count "
            "of zero and fall out by the HAVING clause;\n-- remove it to see them at the end of the list.\n"
        ),
    ),
    (
        "en",
        (
            "package ring\n\n// Buffer keeps the last n values that were pushed.\ntype Buffer struct {\n"
            "\tvalues []float64\n\tnext   int\n\tfull   bool\n}\n\nfunc New(n int) *Buffer { return &Buffer{values: "
            "make([]float64, n)} }\n\nfunc (b *Buffer) Push(v float64) {\n\tb.values[b.next] = v\n"
            "\tb.next = (b.next + 1) % len(b.values)\n\tb.full = b.full || b.next == 0\n"
            "}\n\nfunc (b *Buffer) Len() int {\n\tif b.full {\n\t\treturn len(b.values)\n\t}\n"
            "\treturn b.next\n}\n"
        ),
    ),
    (
        "en",
        (
            '<!doctype html>\n<html lang="en">\n<head><meta charset="utf-8"><title>Opening hours</title></head>\n'
            "<body>\n  <h1>City library</h1>\n  <table>\n    <tr><th>Day</th><th>From</th><th>To</th></tr>\n    "
            "<tr><td>Tuesday</td><td>10:00</td><td>18:00</td></tr>\n    "
            '<tr><td>Friday</td><td>12:00</td><td>20:00</td></tr>\n  </table>\n  <p class="note">Closed on public '
            'holidays. <a href="/contact">Write to us</a>.</p>\n</body>\n</html>\n'
        ),
    ),
    (
        "en",
        (
            "#!/usr/bin/env bash\nset -euo pipefail\n# Keep the newest seven backups and delete the others.\n"
            'folder=${1:?usage: prune.sh FOLDER}\nmapfile -t found < <(ls -1t "$folder"/backup-*.tar.zst)\n'
            'for old in "${found[@]:7}"; do\n  echo "deleting $old ($(stat -c %s "$old") bytes)"\n  rm -- "$old"\n'
            'done\nif (( ${#found[@]} == 0 )); then\n  echo "no backup in $folder" >&2\n  exit 1\n'
            "fi\n"
        ),
    ),
    (
        "en",
        (
            'Traceback (most recent call last):\n  File "report.py", line 41, in <module>\n    main(sys.argv[1:])\n  '
            'File "report.py", line 27, in main\n    rows = [parse(line) for line in lines if line.strip()]\n  File '
            "\"report.py\", line 12, in parse\n    name, amount = line.split(';')\nValueError: too many values to "
            'unpack (expected 2)\n\nThe line that failed was "Smith; John; 12.40". A name may contain the separator, '
            "so the file has to be read with the csv module and its quoting rules."
        ),
    ),
    (
        "en",
        (
            "apiVersion: apps/v1\nkind: Deployment\nmetadata:\n  name: thumbnailer\n  labels: {app: thumbnailer}\n"
            "spec:\n  replicas: 3\n  selector: {matchLabels: {app: thumbnailer}}\n  template:\n    metadata:\n      "
            "labels: {app: thumbnailer}\n    spec:\n      containers:\n        - name: worker\n          image: "
            "registry.example.com/thumbnailer:1.8.2\n          resources:\n            requests: {cpu: 250m, memory: "
            "256Mi}\n            limits: {memory: 512Mi}\n"
        ),
    ),
    # Numbers, tables and structured data.
    (
        "en",
        (
            "Station | 06:00 | 12:00 | 18:00 | Rain (mm)\nHarbour | 11.2 | 17.8 | 15.1 | 0.4\n"
            "Airport | 9.7 | 18.3 | 14.6 | 0.0\nForest | 8.1 | 16.0 | 12.9 | 2.7\nSummit | 1.4 | 5.2 | 2.8 | 6.1\n\n"
            "The mean temperature at noon was 14.3 degrees. The largest difference in a day was measured at the "
            "airport (8.6 degrees), the smallest on the summit (3.8 degrees). All four stations together had 9.2 mm "
            "of rain."
        ),
    ),
    (
        "en",
        (
            "Solve 3x + 7 = 5x - 9. Subtract 3x on both sides: 7 = 2x - 9. Add 9: 16 = 2x. Divide by 2: x = 8. "
            "Check: 3 * 8 + 7 = 31, and 5 * 8 - 9 = 31, so it is right.\nSolve x^2 - 5x + 6 = 0. Two numbers with "
            "the sum 5 and the product 6 are 2 and 3, so (x - 2)(x - 3) = 0, and x is 2 or 3.\n"
            "A rectangle has a perimeter of 34 cm and a length of 12 cm. Its width is (34 - 24) / 2 = 5 cm, its area "
            "60 square centimetres."
        ),
    ),
    (
        "en",
        (
            '{"order": "A-20931", "currency": "EUR", "customer": {"name": "Ines Okafor", "city": "Porto"}, "lines": '
            '[{"sku": "TEA-250", "quantity": 2, "price": 7.9}, {"sku": "CUP-03", "quantity": 6, "price": 4.25}, '
            '{"sku": "TRAY-1", "quantity": 1, "price": 19.0}], "shipping": 4.9, "total": 65.2, "paid": true, '
            '"notes": null, "history": [{"at": "2031-05-02T09:14:00Z", "state": "placed"}, {"at": '
            '"2031-05-03T16:40:12Z", "state": "sent"}]}'
        ),
    ),
    (
        "en",
        (
            "2031-02-11 03:12:07,418 INFO  scheduler   picked 14 jobs in 31 ms\n2031-02-11 03:12:07,902 WARN  "
            "worker-3    disk 91 % full, 8.2 GiB left\n2031-02-11 03:12:09,115 ERROR worker-3    job 88213 failed: "
            "connection reset by peer (attempt 2 of 5)\n2031-02-11 03:12:14,120 INFO  worker-3    job 88213 done "
            "after 4.9 s\n2031-02-11 03:13:00,000 INFO  scheduler   heartbeat: 6 workers, 0 lost, queue 122\n"
        ),
    ),
    (
        "en",
        (
            "Q: A tank holds 840 litres. One pipe fills it in 6 hours, another in 4 hours. How long do both together "
            "take?\nA: The first pipe gives 840 / 6 = 140 litres an hour, the second 840 / 4 = 210. Together they "
            "give 350 litres an hour, and 840 / 350 = 2.4 hours, which is 2 hours and 24 minutes.\n"
            "Q: How much has the second pipe given by then?\nA: 210 * 2.4 = 504 litres, which is 60 percent of the "
            "tank."
        ),
    ),
    # Letters and messages.
    (
        "en",
        (
            "Subject: Moving the workshop to October\n\nHello everyone,\n\nthree of the six speakers cannot travel "
            "in September, so I suggest the week of 13 October instead. The venue is free, the hotel keeps its price "
            "until the end of this month, and the catering can be changed without a fee. Please answer by Wednesday "
            "whether this suits you. If I hear nothing, I will take it as a yes.\n\nMany thanks, and sorry for the "
            "extra round of mail.\n\nBest wishes,\nPriya"
        ),
    ),
    (
        "en",
        (
            "Dear neighbours,\n\non Saturday we are going to celebrate my mother's eightieth birthday in the "
            "courtyard. There will be an accordion from five o'clock on, and it may get loud, because my uncles "
            "sing. We promise to stop at ten. If you would like to come down for a piece of cake, you are very "
            "welcome; please bring a chair. Should anything disturb you, ring at number 14 and we will turn it down "
            "at once.\n\nWarm regards from the second floor"
        ),
    ),
    (
        "en",
        (
            "Application for the position of laboratory assistant\n\nDear Dr. Haddad,\n\n"
            "I have worked for four years in the water laboratory of the city of Bergen, where I was responsible for "
            "sampling, photometry and the maintenance of two chromatographs. Last year I introduced a barcode system "
            "that reduced mix-ups from eleven to none. I would now like to work in research, and your group's study "
            "of lake sediments is the reason why I am writing. I could begin on 1 March.\n\n"
            "Yours sincerely,\nSolveig Aas"
        ),
    ),
    # News, argument, science, law, notes.
    (
        "en",
        (
            "The council voted on Monday night to close the old swimming hall, by twenty-three votes to nineteen. "
            "Repairs would have cost eleven million, the treasurer said, which is more than a new building on the "
            "same ground. Opponents pointed out that no date was named for the new one, and that four schools will "
            "have no lessons from autumn on. A petition with six thousand names was handed over before the debate. "
            "The mayor promised a plan by the end of the year."
        ),
    ),
    (
        "en",
        (
            "Those who want to abolish homework like to quote studies from primary schools, where indeed it changes "
            "little. Those who want to keep it quote studies of sixteen-year-olds, where it seems to help. Both "
            "sides tend to forget that the amount matters less than what happens with it on the next morning. "
            "Homework that is collected and never discussed teaches one thing only: that the work was for the "
            "drawer. Ten minutes that are looked at are worth more than an hour that is not."
        ),
    ),
    (
        "en",
        (
            "We exposed 240 seedlings to three levels of shade for eight weeks and measured their height, leaf area "
            "and dry mass. Plants under 60 percent shade were taller (p < 0.01) but had 22 percent less dry mass "
            "than those in full light; the difference in leaf area was not significant. We conclude that the species "
            "answers shade by stretching its stem rather than by growing larger leaves. A limitation is that all "
            "seeds came from a single population, so the result may not hold elsewhere."
        ),
    ),
    (
        "en",
        (
            "The treaty was signed in a railway carriage, because neither side would enter the other's tent. It had "
            "nine articles and a map, and the map was wrong: the river that was to be the border had left its bed "
            "two springs before. For sixty years farmers paid taxes to one country and sent their children to school "
            "in the other. When the error was found, a commission travelled there, looked at the orchards on both "
            "banks, and decided to say nothing."
        ),
    ),
    (
        "en",
        (
            "Review: The second album of this trio is shorter than the first, and better for it. Where the debut "
            "piled up strings and choirs, here are a piano, a drum played with brushes, and a voice that is recorded "
            "so closely that one hears the breath. The third song, which has no chorus at all, is the best thing "
            "they have written. Only the last piece, a nine-minute study for tape, outstays its welcome. Four stars "
            "out of five, and a recommendation to listen at night."
        ),
    ),
    (
        "en",
        (
            "The parties agree that the tenant may keep a small animal, provided that no other resident objects in "
            "writing within fourteen days. The consent may be withdrawn for good cause, in particular if the animal "
            "causes damage or unreasonable noise. The tenant is liable for all damage, whether or not he is at "
            "fault. Changes to this agreement must be made in writing; this also applies to a waiver of the written "
            "form. If one provision is invalid, the remaining ones stay in force."
        ),
    ),
    (
        "en",
        (
            "Patient, 54, presents with chest tightness on climbing stairs for about two weeks, no pain at rest. "
            "Blood pressure 148/92, pulse 78 and regular, lungs clear. Former smoker (15 pack years), father had a "
            "heart attack at 61. Resting ECG without abnormality. Plan: blood count, lipids, troponin; exercise ECG "
            "within the week; start low-dose aspirin; return at once if symptoms appear at rest or last for more "
            "than ten minutes."
        ),
    ),
    # German.
    (
        "de",
        (
            "Der Bäcker an der Ecke öffnete jeden Morgen um halb sechs, auch im Winter, wenn die Straße noch schwarz "
            "war und nur das Licht aus seinem Fenster auf den Schnee fiel. Er kannte alle beim Namen, und wer neu "
            "war, bekam beim ersten Mal ein Brötchen geschenkt. Als er mit siebzig aufhörte, stellte sich heraus, "
            "dass er nie ein Rezept aufgeschrieben hatte. Seine Tochter brauchte drei Monate, bis das Brot wieder so "
            "schmeckte wie früher, und sie sagt bis heute, es fehle noch etwas."
        ),
    ),
    (
        "de",
        (
            "Ein Wärmetauscher überträgt Wärme von einem Medium auf ein anderes, ohne dass sich beide vermischen. In "
            "einem Plattenwärmetauscher strömen die Flüssigkeiten in entgegengesetzter Richtung durch schmale "
            "Kanäle, die durch dünne Bleche getrennt sind. Je größer die Fläche und je dünner das Blech, desto mehr "
            "Wärme geht in der gleichen Zeit über. Lagert sich Kalk ab, sinkt die Leistung; deshalb sollte das Gerät "
            "alle zwei Jahre gespült und der Druckverlust gemessen werden."
        ),
    ),
    (
        "de",
        (
            "Sehr geehrte Frau Lindner,\n\nvielen Dank für Ihr Schreiben vom 3. Juni. Leider können wir die "
            "Reparatur nicht als Garantiefall anerkennen, weil das Gehäuse bereits geöffnet worden war. Aus Kulanz "
            "übernehmen wir jedoch die Hälfte der Kosten, das sind 64,50 Euro. Wenn Sie damit einverstanden sind, "
            "schicken Sie uns bitte das unterschriebene Formular zurück; das Gerät ist dann spätestens nach zehn "
            "Werktagen wieder bei Ihnen.\n\nMit freundlichen Grüßen\nJens Albrecht, Kundendienst"
        ),
    ),
    (
        "de",
        (
            "Frage: Warum ist der Himmel am Tag blau und am Abend rot?\nAntwort: Das Sonnenlicht besteht aus allen "
            "Farben. In der Luft wird kurzwelliges, also blaues Licht viel stärker gestreut als langwelliges, und "
            "deshalb kommt uns aus allen Richtungen Blau entgegen. Am Abend ist der Weg durch die Atmosphäre länger; "
            "das Blau ist dann schon zur Seite gestreut worden, und übrig bleiben Gelb, Orange und Rot.\n"
            "Frage: Gilt das auch auf dem Mars?\nAntwort: Nein, dort ist es eher umgekehrt, weil der feine Staub "
            "anders streut."
        ),
    ),
    (
        "de",
        (
            "Für den Teig 300 g Mehl mit 150 g kalter Butter, einer Prise Salz und zwei Esslöffeln Zucker rasch "
            "verkneten, ein Ei dazugeben und alles eine Stunde lang kühl stellen. Inzwischen acht säuerliche Äpfel "
            "schälen, in Spalten schneiden und mit Zitronensaft beträufeln. Den Teig ausrollen, die Form damit "
            "auslegen, den Boden mehrmals einstechen und mit den Äpfeln belegen. Bei 180 Grad etwa 45 Minuten backen "
            "und erst anschneiden, wenn der Kuchen ganz abgekühlt ist."
        ),
    ),
    (
        "de",
        (
            "„Haben Sie etwas zu verzollen?“, fragte der Beamte.\n„Nur eine Geige“, sagte der junge Mann.\n"
            "„Alt?“\n„Älter als wir beide zusammen.“\nDer Beamte ließ den Kasten öffnen, betrachtete das Instrument "
            "und dann die Hände seines Besitzers. „Spielen Sie mir etwas vor“, sagte er schließlich, „dann glaube "
            "ich Ihnen, dass sie Ihnen gehört.“ Und so kam es, dass an diesem Nachmittag vierzig Wagen in der Hitze "
            "warteten und sich niemand beschwerte."
        ),
    ),
    (
        "de",
        (
            "Die Mitgliederversammlung beschließt mit der Mehrheit der abgegebenen Stimmen; Enthaltungen werden "
            "nicht gezählt. Änderungen der Satzung bedürfen einer Mehrheit von drei Vierteln. Über jede Versammlung "
            "ist ein Protokoll zu führen, das vom Vorsitzenden und vom Schriftführer zu unterzeichnen ist. Anträge "
            "sind spätestens sieben Tage vorher schriftlich einzureichen; später eingehende Anträge werden nur "
            "behandelt, wenn die Versammlung sie mit Zweidrittelmehrheit als dringlich anerkennt."
        ),
    ),
    (
        "de",
        (
            "Im ersten Quartal stieg der Umsatz um 4,7 Prozent auf 18,3 Millionen Euro, während die Kosten um 6,1 "
            "Prozent zunahmen. Das Ergebnis vor Steuern sank daher von 2,4 auf 2,1 Millionen. Als Gründe nennt das "
            "Unternehmen höhere Frachtraten und den Umzug des Lagers. Für das Gesamtjahr erwartet der Vorstand "
            "unverändert ein Wachstum zwischen drei und fünf Prozent; eine Prognose für das Ergebnis will er erst im "
            "August abgeben."
        ),
    ),
    # French.
    (
        "fr",
        (
            "Le vieux pont n'avait plus de garde-fou du côté de l'amont, et pourtant personne ne tombait jamais. On "
            "disait au village que la rivière connaissait les siens. Quand Jeanne revint, après vingt ans passés en "
            "ville, elle le traversa les yeux fermés pour voir si c'était encore vrai. Au milieu, elle entendit "
            "l'eau qui changeait de voix entre deux piles, comme autrefois, et elle sut exactement combien de pas il "
            "lui restait à faire."
        ),
    ),
    (
        "fr",
        (
            "La photosynthèse permet aux plantes de fabriquer du sucre à partir de l'eau et du dioxyde de carbone. "
            "L'énergie nécessaire vient de la lumière, que la chlorophylle absorbe surtout dans le rouge et dans le "
            "bleu ; c'est pourquoi les feuilles nous paraissent vertes. L'oxygène que nous respirons n'est, dans "
            "cette réaction, qu'un déchet. La nuit, les plantes respirent comme nous : elles consomment de l'oxygène "
            "et rejettent du gaz carbonique, mais en quantité bien moindre."
        ),
    ),
    (
        "fr",
        (
            "Madame, Monsieur,\n\nJe vous écris au sujet de ma facture du 12 mars, numéro 5518. Le montant de 89,90 "
            "euros a été prélevé deux fois, le 15 et le 16 du même mois. Je vous prie de bien vouloir me rembourser "
            "la somme perçue en trop et de m'indiquer comment cette erreur s'est produite. Vous trouverez ci-joint "
            "une copie de mon relevé bancaire.\n\nDans l'attente de votre réponse, je vous adresse mes salutations "
            "distinguées.\n\nClaire Delmas"
        ),
    ),
    (
        "fr",
        (
            "— Tu as vu mes lunettes ?\n— Sur ton front.\n— Non, les autres, celles pour lire.\n"
            "— Dans la cuisine, à côté du pain. Tu les as posées là quand le téléphone a sonné.\n"
            "— Et qui était-ce, au téléphone ?\n— Ta sœur. Elle arrive par le train de dix-huit heures quarante, "
            "avec les enfants et le chien.\n— Le chien aussi ? Alors il faut ranger les chaussures.\n"
            "— C'est déjà fait, dit-il en riant, depuis la dernière fois je les garde sous clé."
        ),
    ),
    (
        "fr",
        (
            "Pour installer le logiciel, téléchargez l'archive, vérifiez sa somme de contrôle, puis décompressez-la "
            "dans un dossier vide. Ouvrez un terminal dans ce dossier et lancez la commande « ./configurer "
            "--langue=fr ». Le programme pose quatre questions ; en cas de doute, gardez la réponse proposée. À la "
            "fin, un message indique l'adresse à ouvrir dans le navigateur. Si le port 8080 est déjà occupé, "
            "choisissez-en un autre avec l'option « --port »."
        ),
    ),
    (
        "fr",
        (
            "En 2030, la commune comptait 12 480 habitants, soit 3,2 % de plus qu'en 2025. La part des moins de "
            "vingt ans a reculé de 24 à 22 %, tandis que celle des plus de soixante-cinq ans est passée de 17 à 20 "
            "%. Un logement sur neuf est vacant, le plus souvent parce que la succession n'est pas réglée. La "
            "municipalité propose depuis janvier une aide de 5 000 euros à ceux qui rénovent une maison inoccupée et "
            "s'engagent à y vivre cinq ans."
        ),
    ),
    # Spanish.
    (
        "es",
        (
            "El tranvía número nueve subía la cuesta tan despacio que los niños corrían a su lado y le ganaban. El "
            "conductor, don Anselmo, los saludaba con la campana y fingía enfadarse. Un día de julio los frenos "
            "fallaron en lo alto, y el tranvía empezó a bajar solo, primero como paseando y luego con un rugido de "
            "hierro. Fueron los niños quienes se acordaron del montón de arena que había en la curva, y quienes "
            "cambiaron la aguja a tiempo."
        ),
    ),
    (
        "es",
        (
            "Un terremoto se produce cuando dos bloques de la corteza terrestre, que llevaban años trabados, se "
            "deslizan de golpe a lo largo de una falla. La energía acumulada se libera en forma de ondas. Las "
            "primeras en llegar comprimen el suelo y rara vez causan daños; las segundas lo sacuden de lado y "
            "derriban edificios. Entre unas y otras pasan algunos segundos, y en ese intervalo los sistemas de "
            "alerta pueden detener trenes y cerrar válvulas de gas."
        ),
    ),
    (
        "es",
        (
            "Estimado señor Ibáñez:\n\nLe confirmo la reserva de dos habitaciones dobles para las noches del 8 al 11 "
            "de septiembre, con desayuno incluido, al precio de 96 euros por noche y habitación. La entrada es a "
            "partir de las tres de la tarde. Si llegan después de las diez de la noche, les rogamos que nos avisen "
            "por teléfono, porque la recepción cierra a esa hora. Hay aparcamiento gratuito detrás del edificio.\n\n"
            "Reciba un cordial saludo,\nMarta Soler"
        ),
    ),
    (
        "es",
        (
            "Usuario: ¿Qué diferencia hay entre el clima y el tiempo?\nAsistente: El tiempo es lo que ocurre hoy en "
            "un lugar concreto: si llueve, si hace viento, cuántos grados marca el termómetro. El clima es el "
            "promedio de todo eso a lo largo de unos treinta años. Por eso un invierno muy frío no contradice que el "
            "clima se esté calentando, del mismo modo que un partido perdido no cambia la media de goles de toda la "
            "temporada.\nUsuario: Entonces, ¿se puede predecir el clima?\nAsistente: Sus tendencias sí; un día "
            "concreto, no."
        ),
    ),
    (
        "es",
        (
            "Para preparar el gazpacho, lave un kilo de tomates maduros, medio pepino, un pimiento verde y un diente "
            "de ajo. Córtelo todo en trozos, añada una rebanada de pan del día anterior remojada en agua, cuatro "
            "cucharadas de aceite de oliva, una de vinagre y una pizca de sal. Tritúrelo durante dos minutos, páselo "
            "por un colador fino y déjelo en la nevera al menos tres horas. Sírvalo muy frío, con daditos de pepino "
            "y de pan tostado por encima."
        ),
    ),
    (
        "es",
        (
            "Según el informe, el consumo de agua de la ciudad bajó un 8 % entre 2027 y 2031, aunque la población "
            "creció en 21 000 personas. La mitad del ahorro se debe a la reparación de tuberías: antes se perdían 19 "
            "litros de cada 100, y ahora se pierden 11. El resto procede de contadores individuales y de una tarifa "
            "que encarece el metro cúbico a partir de los 12 por trimestre. El próximo paso, que costará 3,4 "
            "millones, será regar los parques con agua depurada."
        ),
    ),
    # Other languages, and a list of words.
    (
        "it",
        (
            "La biblioteca del quartiere apre alle nove, ma già un quarto d'ora prima c'è gente davanti alla porta: "
            "due studenti con il computer, una signora che legge soltanto gialli, un uomo anziano che viene per il "
            "giornale e per il caldo. La bibliotecaria li conosce tutti e sa chi vuole parlare e chi preferisce "
            "essere lasciato in pace. Quando in consiglio si disse che i libri ormai si leggono sullo schermo, lei "
            "invitò gli assessori a passare un mattino da lei."
        ),
    ),
    (
        "pt",
        (
            "O mercado começa antes do sol. Às quatro e meia chegam os barcos, e meia hora depois o chão já brilha "
            "de água e de escamas. Quem compra para restaurantes anda depressa, levanta as guelras com o polegar, "
            "diz um número e segue adiante; quem compra para casa chega mais tarde e conversa. A dona Lurdes vende "
            "sardinhas há quarenta anos e afirma que o preço certo é aquele que deixa os dois um pouco descontentes."
        ),
    ),
    (
        "nl",
        (
            "De fiets stond al drie weken tegen hetzelfde hek, met een bos gedroogde bloemen in de mand. Niemand "
            "wist van wie hij was. De conciërge hing er een briefje aan, daarna een tweede, en ten slotte knipte hij "
            "het slot door en zette hem in de kelder. De volgende ochtend stond er een vrouw voor de deur die "
            "vertelde dat zij in het ziekenhuis had gelegen en elke dag uit het raam naar haar fiets had gekeken, om "
            "te weten hoe lang het nog zou duren."
        ),
    ),
    (
        "en",
        (
            "Glossary. Bearing: the direction of an object, in degrees clockwise from north. Draught: the depth of a "
            "hull below the water line. Fathom: six feet, or 1.83 metres. Fetch: the distance over which wind has "
            "blown across open water. Knot: one nautical mile, that is 1852 metres, per hour. Leeward: on the side "
            "away from the wind. Neap tide: a tide with a small range, around the first and last quarter of the "
            "moon. Windward: the opposite of leeward."
        ),
    ),
)
"""64 passages of 80 to 150 tokens with a tokenizer of many languages (to 230 with an English one).

Most are in English, others in German, French and Spanish, and one in each of three more languages.
"""
