"""The words that prompts are made of: logs, prose, briefs. Data only.

Must not know: how texts are put together (`prompts` does).
"""

from __future__ import annotations


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def _phrases(text: str) -> tuple[str, ...]:
    return tuple(text.split("|"))


# 256 words of one length, one token each in common vocabularies: eight of them are a text's unique tag.
TAGS = _words(
    "able acid aged also area army away baby back ball band bank base bath bear beat been beer bell belt best bill "
    "bird blow blue boat body bone book born both bowl bulk bush busy cafe cake call calm camp card care case cash "
    "cast cell chat chip city clay clip club coal coat code cold come cook cool cope copy core cost crew crop dark "
    "data date dawn days deal dean dear deep deer desk dish disk door down draw drop drum duck dust duty each earn "
    "east easy edge else even ever exit face fact fair fall farm fast fear feed feel feet file fill film find fine "
    "fire firm fish five flag flat flow folk food foot form four free from fuel full fund gain game gate gave gear "
    "gift girl give glad goal goes gold golf gone good gray grew grow gulf hair half hall hand hard harm have head "
    "hear heat help here hero high hill hold hole home hope host hour huge idea inch into iron item join jump jury "
    "just keen keep kind king knew know lack lady laid lake land lane last late lead left less life lift like line "
    "link lion list live load loan lock logo long look loop lord loud love luck made mail main make many mark mass "
    "meal mean meat meet menu mild milk mill mind mine miss mode moon more most move much name navy near neck need "
    "news next nice nine node none noon nose note odds only open oral oven "
)
# Said at the end of a text, to fill it up to its length: plain words, cut off after any of them.
CLOSINGS = (
    "please answer in plain words and keep to what is written above",
    "say what you are sure of and what is only a guess",
    "if something is missing, name it and go on without it",
    "do not repeat the text, and do not make up a source",
    "give the most important point first and the details after it",
    "where two readings are possible, choose one and say why",
    "short sentences are better than long ones, and a list is fine",
    "use the same names as the text so that I can find the place again",
    "I will read your answer on a small screen in a noisy room",
    "there is no need to be polite, but please be careful with numbers",
    "assume that I know the subject well but not this case",
    "if you need more from me, ask at the end and not before",
)
FILLERS = _words("a I so as it to in on of and the")  # what a gap of a few tokens is closed with

COMPONENTS = _words(
    "payment-gateway order-service auth-proxy ledger-sync inventory-cache search-indexer mail-relay session-store "
    "pricing-engine webhook-dispatcher report-builder user-profile media-transcoder rate-limiter config-watcher "
    "audit-trail feature-flags catalog-api checkout-web billing-cron"
)
LEVELS = ("INFO", "INFO", "INFO", "DEBUG", "DEBUG", "WARN", "WARN", "ERROR", "ERROR", "FATAL")
LOG_EVENTS = (
    "Timeout after {n} ms calling {host}:8443/v2/{noun} (attempt {k} of 5)",
    "Connection pool exhausted: {k} of {k} connections busy, waited {n} ms",
    "GET /api/v3/{noun}/{n} -> {code} in {k} ms ({n} bytes)",
    "POST /internal/{noun} -> {code} in {n} ms, retrying with backoff {k}s",
    "Cache miss for key {noun}:{n}:{hex}, loading from replica {host}",
    "Deadlock detected while updating {noun}; transaction {hex} rolled back after {n} ms",
    "Consumer group {noun}-workers rebalanced: {k} partitions assigned, lag {n}",
    "Circuit breaker for {host} is now OPEN, failure rate {k}.{d}% over {n} calls",
    "Slow query ({n} ms): SELECT * FROM {noun} WHERE tenant_id = {k} ORDER BY updated_at DESC LIMIT {n}",
    "Heap usage {k}% after full GC, pause {n} ms, old generation {n} MiB",
    "TLS handshake with {host} failed: certificate expired {k} days ago (serial {hex})",
    "Rejected message {hex} on topic {noun}.events: schema version {k} is not compatible with {d}",
    "Leader election finished, node {host} holds the lease for {n} ms, term {k}",
    "Flushed {n} rows to segment {hex} of table {noun} in {k} ms",
    "Health check of {host} answered {code}, marking the instance unhealthy ({k} failures in a row)",
    "Feature flag {noun}-rollout evaluated to variant {d} for user {hex}",
)
NOUNS = _words(
    "orders invoices refunds sessions carts shipments profiles tokens prices products events subscriptions payouts "
    "devices webhooks snapshots contracts messages"
)
HOSTS = _words("ledger.internal db-replica-2 kafka-07 cache-eu-1 auth.internal node-14 search-3 edge-fra-2")
FRAMES = (
    "    at com.acme.{pkg}.{cls}.{method}({cls}.java:{n})",
    '  File "/srv/app/{pkg}/{method}.py", line {n}, in {method}',
    "    at {method} (/srv/app/dist/{pkg}/{cls}.js:{n}:{k})",
    "goroutine {n} [running]: {pkg}.(*{cls}).{method}(0x{hex}, 0x{k}) /src/{pkg}/{method}.go:{n} +0x{k}",
)
PACKAGES = _words("billing checkout transport storage scheduler auth retry cache")
CLASSES = _words("OrderHandler LedgerClient RetryPolicy SessionStore PoolManager RowMapper EventBus TokenFilter")
METHODS = _words("execute handle_request commit acquire flush decode dispatch refresh_token load_page on_message")
ERRORS = (
    "java.net.SocketTimeoutException: Read timed out",
    "psycopg.errors.DeadlockDetected: deadlock detected",
    "TypeError: Cannot read properties of undefined (reading 'currency')",
    "java.lang.IllegalStateException: Pool is shut down",
    "KeyError: 'idempotency_key'",
    "panic: runtime error: invalid memory address or nil pointer dereference",
)
# Of one length each, so that a prompt's share of log, which has more tokens, varies little.
QUESTIONS = (
    "Since this morning about one in twenty customers cannot finish their order. I pasted the log of the affected "
    "hour below. What is the most likely cause, and what should we check first?",
    "Our nightly job stopped half way and the retries made it worse. Please read the log below and explain what "
    "happened, step by step, and how we can keep all this from happening again.",
    "After the last release the service restarts every few minutes. We rolled back but the errors stay. Below is "
    "the log from one of the nodes. Which of these messages matter to us here?",
    "A user reports that payments are taken twice. I could not reproduce it. Here is what our services logged "
    "around that time. Can you tell me how this can happen, and suggest a safe fix?",
    "Latency doubled overnight although traffic did not change at all. Here is the log of one instance from the "
    "busiest hour. Where is the time spent, and what would you look at next time?",
)

SUBJECTS = _phrases(
    "the committee|the harbour authority|an early survey|the second expedition|the regional archive|a group of farmers|"
    "the new water board|the chief engineer|a visiting scholar|the railway company|the town council|local fishermen|"
    "the ministry of works|a panel of physicians|the weaving guild|a retired surveyor|the coastal villages|"
    "the observatory|the botanical society|the winter report|the valley cooperative|a team of geologists|"
    "the port's merchants|the museum's curator|the school inspectors|the night watch|the island's council|"
    "most of the witnesses|the bridge commission|the younger members|the agricultural college|the editor"
)
VERBS = _phrases(
    "described|rejected|measured|recorded|had expected|slowly accepted|questioned|later published|defended|"
    "underestimated|paid for|compared|postponed|finally approved|documented|never understood|reconsidered|"
    "quietly abandoned|expanded|summarised|doubted|had long promised|inspected|restored"
)
OBJECTS = _phrases(
    "the cost of the northern canal|a second set of measurements|the plan for a deeper harbour|the decline of the "
    "herring trade|three years of rainfall records|the proposal to drain the marsh|a map of the abandoned quarries|"
    "the terms of the older agreement|the condition of the stone piers|an unusually warm autumn|the loss of the "
    "eastern pasture|the first census of the valley|a simpler method of storing grain|the effects of the new tariff|"
    "the letters of the former governor|the route across the high plateau|a disputed inheritance|the spread of the "
    "disease among the vines|the repair of the lighthouse|the change in the river's course|a catalogue of medicinal "
    "plants|the wages of the dock workers|the timetable of the mail coaches|the quality of the local clay|"
    "an experiment with slower kilns|the damage done by the spring flood|the school's library|a treaty with the "
    "neighbouring district|the behaviour of the glacier|the origin of the oldest songs|the price of imported timber|"
    "the failure of two successive harvests"
)
ADVERBIALS = _phrases(
    "in the spring of that year|without consulting the landowners|after long and bitter debate|according to the "
    "surviving minutes|as later events would show|for reasons that are still unclear|with the help of borrowed "
    "instruments|despite repeated warnings|in a letter to the capital|before the road was finished|to the surprise of "
    "many observers|on the basis of very few samples|at considerable expense|during the long frost|under pressure from "
    "the creditors|while the older methods were still in use|with remarkable patience|in the absence of better "
    "evidence|shortly before the elections|over the following decade|against the advice of its own experts|"
    "in three separate volumes|as the population grew|by the light of later research"
)
CONNECTIVES = (
    "",
    "",
    "",
    "However, ",
    "At the same time, ",
    "By contrast, ",
    "As a result, ",
    "Even so, ",
    "In practice, ",
    "According to one account, ",
    "Meanwhile, ",
    "For that reason, ",
)
HEADINGS = _phrases(
    "Background|The first surveys|Sources and methods|The years of expansion|Disputes over land|Costs and revenues|"
    "Life in the villages|The great flood|What the records show|Consequences|Trade and transport|Open questions|"
    "A change of policy|The instruments|Later interpretations|Conclusions drawn at the time"
)

STORY_ASKS = (
    "Write a short story from the notes below. Keep to the notes, give every scene a place and a time of day, and "
    "end on an image rather than a lesson.",
    "Turn the following notes into a story told in the past tense by someone who was there and took part. Keep "
    "the order of the notes; leave the end open.",
    "Write the opening chapter of a novel that fits these notes. Let the characters speak for themselves, keep "
    "the sentences plain, and give it a good title.",
)
STORY_NOTES = (
    "The story takes place in {place}, {time}.",
    "The main character is {person}, who {trait}.",
    "There is also {person}, who {trait}.",
    "At some point {event}.",
    "Somebody keeps {thing} hidden and nobody asks why.",
    "The weather matters: it {weather}.",
    "One scene shows {person} alone with {thing}.",
    "The turning point comes when {event}.",
)
PLACES = _phrases(
    "a lighthouse that is about to be closed|a night train through flat country|a mountain village cut off by snow|"
    "the archive of a small museum|a ferry that no longer runs on time|a greenhouse at the edge of a desert|"
    "an almost empty hotel by the sea|a repair shop for old radios"
)
TIMES = _phrases(
    "during the last week of summer|in the winter after a long war|on the longest day of the year|"
    "forty years from now|before telephones reached the valley|over a single night"
)
PEOPLE = _phrases(
    "a retired map maker|a girl who repairs clocks|the ferryman's brother|a doctor on her first posting|"
    "an unlucky translator|the keeper of the tide tables|a boy who counts birds|the last guest of the season"
)
TRAITS = _phrases(
    "has not spoken to the family for years|writes letters that are never sent|cannot sleep when the wind turns|"
    "knows more about the accident than anyone suspects|has promised to leave by morning|"
    "is afraid of open water|trusts numbers more than people"
)
EVENTS = _phrases(
    "a parcel arrives that was posted decades ago|the power fails and the radio keeps playing|"
    "two strangers turn out to know the same song|the bridge is closed without a reason|"
    "a name is missing from the list|the dog comes back alone|someone recognises the handwriting"
)
THINGS = _phrases("a brass key|a bundle of negatives|a notebook in cipher|a broken barometer|an unsigned will")
WEATHERS = _phrases("rains without a break|is too warm for the month|turns foggy at noon|is perfectly still")

GUIDE_ASKS = (
    "Write a detailed guide of several pages on the subject below. Explain every step, give examples, and say "
    "what commonly goes wrong. Cover each of the following points in its own section.",
    "Prepare a thorough handbook chapter from this outline. Write in full paragraphs, in the order given, name "
    "the sources that a reader could turn to, and close each section with a checklist.",
)
GUIDE_POINTS = (
    "how to plan {task}, with the people and the time that it takes",
    "which tools {task} needs and what to do without them",
    "the history of {task} and why older methods were given up",
    "the five most frequent mistakes in {task} and their early signs",
    "how {task} differs between a small team and a large organisation",
    "what {task} costs in the first year and afterwards",
    "how to tell whether {task} has succeeded, with figures to watch",
    "safety, law and record keeping in connection with {task}",
)
TASKS = _phrases(
    "moving a database without downtime|running a community garden|restoring wooden window frames|"
    "training volunteers for mountain rescue|setting up a small bakery|digitising a parish archive|"
    "keeping bees in a cold climate|organising a regional chess league|writing a software test plan|"
    "insulating an old stone house"
)
