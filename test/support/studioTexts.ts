/** Hostile texts for Studio: what makes parsers slow, deep or wrong, and what tries to be markup or script. */

const times = (count: number, write: (index: number) => string): string =>
  Array.from({ length: count }, (_, index) => write(index)).join("")

const table = (columns: number, rows: number): string =>
  `${"|a".repeat(columns)}|\n${"|-".repeat(columns)}|\n${`${"|b".repeat(columns)}|\n`.repeat(rows)}`

/** Texts for which a parser of Markdown needs seconds, or that overflow its stack. */
export const hostileTexts: Readonly<Record<string, string>> = {
  "emphasis that may close": "*a_ ".repeat(20_000),
  "emphasis without a space": "*a_".repeat(20_000),
  "strong in emphasis": "*a **a ".repeat(20_000),
  "closing emphasis": "a_ ".repeat(40_000),
  "opening emphasis": "_a ".repeat(40_000),
  "emphasis in threes": `a**b${"c* ".repeat(40_000)}`,
  "stars around a letter": `${"*".repeat(40_000)}a${"*".repeat(40_000)}`,
  "strikethrough": "~a~~ ".repeat(20_000),
  "opening brackets": "[".repeat(50_000),
  "closing brackets": "a](".repeat(30_000),
  "nested brackets": `${"[".repeat(30_000)}a${"]".repeat(30_000)}`,
  "links that do not end": "[a](<b".repeat(20_000),
  "images in images": "![[]()".repeat(20_000),
  "runs of ticks": times(400, (index) => `e${"`".repeat(index)}`),
  "references": `${times(3_000, (index) => `[${index}]: u\n`)}\n${"[0] ".repeat(20_000)}`,
  "definitions in paragraphs": times(10_000, (index) => `[${index}]: u\n\n`),
  "nested quotes": ">".repeat(5_000),
  "nested quotes with text": `${"> ".repeat(3_000)}a*`.repeat(3),
  "nested lists": times(500, (index) => `${"  ".repeat(index)}- a\n`),
  "lists in a line": `${"- ".repeat(5_000)}x${"\n".repeat(5_000)}`,
  "a large table": table(60, 1_500),
  "a wide table": table(20_000, 3),
  "tables in a row": `${table(10, 100)}\n`.repeat(20),
  "bars": "|".repeat(100_000),
  "comments": "<!-- <? <![CDATA[ </".repeat(10_000),
  "tags": "<a<b ".repeat(20_000),
  "an address with an end that does not end": `http://a${"!".repeat(100_000)}a`,
  "addresses": "http://a.b/".repeat(10_000),
  "mail addresses": "a@a.".repeat(25_000),
  "a long word": "a".repeat(200_000),
  "short lines": "a\n".repeat(50_000),
  "blank lines": "\n".repeat(100_000),
  "headings": "# a\n".repeat(25_000),
  "underlines": "a\n=\n".repeat(25_000),
  "a code block that does not end": `\`\`\`js\n${"(((({{{{[[[[\"'`//**".repeat(5_000)}`,
  "lists of each kind": "- a\n\n1. b\n\n".repeat(10_000)
}

/** Texts that try to be markup, script, addresses or events. */
export const markupTexts: ReadonlyArray<string> = [
  "<script>window.hit = 1</script>",
  "<img src=x onerror='window.hit = 2'>",
  "<svg onload='window.hit = 3'>",
  "<svg><script>window.hit = 4</script></svg>",
  "<iframe srcdoc='<script>parent.hit = 5</script>'></iframe>",
  "<iframe src='javascript:parent.hit = 6'></iframe>",
  "<a href='javascript:window.hit = 7' autofocus onfocus='window.hit = 7'>x</a>",
  "<body onload='window.hit = 8'>",
  "<details open ontoggle='window.hit = 9'>",
  "<input autofocus onfocus='window.hit = 10'>",
  "<style>@import 'http://leak.invalid/1'; * { background: url(http://leak.invalid/2) }</style>",
  "<link rel=stylesheet href='http://leak.invalid/3'>",
  "<meta http-equiv=refresh content='0;url=http://leak.invalid/4'>",
  "<form action='http://leak.invalid/5'><button autofocus>x</button></form>",
  "<base href='http://leak.invalid/6'>",
  "<object data='http://leak.invalid/7'></object>",
  "<embed src='http://leak.invalid/8'>",
  "<video src='http://leak.invalid/9' autoplay></video>",
  "<math><mtext></form><form><mglyph><style></math><img src onerror='window.hit = 19'>",
  "</textarea><script>window.hit = 20</script>",
  "</title></script><script>window.hit = 21</script>",
  "\"><img src=x onerror=window.hit=22>",
  "' onmouseover='window.hit = 23' x='",
  "javascript:window.hit=24",
  "${window.hit = 25}{{constructor.constructor('window.hit = 25')()}}",
  "__proto__",
  "constructor",
  "![x](http://leak.invalid/10) [x](javascript:window.hit=28)",
  "\u202e\u2066<img src=x onerror=window.hit=29>\u0000\u001b[31m",
  `data: {"_tag":"RunStarted"}\n\nevent: reset\ndata: {}\n\n<script>window.hit = 30</script>`
]
