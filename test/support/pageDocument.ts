/**
 * The script of the page over a document of its own: elements without a layout, and a server of the test. What it shows
 * is compared as data.
 */
import * as fs from "node:fs"
import * as vm from "node:vm"

class Text {
  parentNode: Element | null = null
  data: string
  constructor(data: string) {
    this.data = data
  }
  get length(): number {
    return this.data.length
  }
  get textContent(): string {
    return this.data
  }
  appendData(text: string): void {
    this.data += text
  }
  remove(): void {
    this.parentNode?.drop(this)
  }
}

type Node = Text | Element

/** What an element shows: its tag, its classes, what it says of itself, and its content. */
export type Shown = string | readonly [string, string, Readonly<Record<string, string>>, ReadonlyArray<Shown>]

class Element {
  parentNode: Element | null = null
  className = ""
  hidden = false
  readonly dataset: Record<string, string> = {}
  readonly style = {}
  readonly localName: string
  private nodes: Array<Node> = []
  private onClick = (): void => {}

  constructor(localName: string) {
    this.localName = localName
  }

  get classList() {
    const change = (has: boolean, name: string): void => {
      const others = this.className.split(" ").filter((each) => each !== name && each !== "")
      this.className = (has ? [...others, name] : others).join(" ")
    }
    return { add: (name: string) => change(true, name), toggle: (name: string, has: boolean) => change(has, name) }
  }

  get children(): ReadonlyArray<Element> {
    return this.nodes.filter((node) => node instanceof Element)
  }

  get firstElementChild(): Element | null {
    return this.children[0] ?? null
  }

  get lastElementChild(): Element | null {
    return this.children.at(-1) ?? null
  }

  get isConnected(): boolean {
    return this.parentNode !== null && this.parentNode.isConnected
  }

  get textContent(): string {
    return this.nodes.map(({ textContent }) => textContent).join("")
  }

  set textContent(text: string) {
    this.replaceChildren(text)
  }

  drop(node: Node): void {
    this.nodes = this.nodes.filter((each) => each !== node)
    node.parentNode = null
  }

  append(...nodes: ReadonlyArray<Node | string>): void {
    for (const each of nodes) {
      const node = each instanceof Element || each instanceof Text ? each : new Text(String(each))
      node.parentNode?.drop(node)
      node.parentNode = this
      this.nodes.push(node)
    }
  }

  appendChild(node: Node): Node {
    this.append(node)
    return node
  }

  replaceChildren(...nodes: ReadonlyArray<Node | string>): void {
    for (const node of this.nodes) node.parentNode = null
    this.nodes = []
    this.append(...nodes)
  }

  remove(): void {
    this.parentNode?.drop(this)
  }

  /** Finds elements by one class. */
  querySelectorAll(selector: string): ReadonlyArray<Element> {
    const name = /^\.(\w+)$/.exec(selector)?.[1]
    return this.children.flatMap((child) => [
      ...(name !== undefined && child.className.split(" ").includes(name) ? [child] : []),
      ...child.querySelectorAll(selector)
    ])
  }

  querySelector(selector: string): Element | null {
    return this.querySelectorAll(selector)[0] ?? null
  }

  addEventListener(name: string, listener: () => void): void {
    if (name === "click") this.onClick = listener
  }

  removeEventListener(): void {}

  /** Presses the element. */
  click(): void {
    this.onClick()
  }

  setAttribute(): void {}
  focus(): void {}

  get content(): ReadonlyArray<Shown> {
    const content: Array<Shown> = []
    for (const node of this.nodes) {
      const shown = node instanceof Text ? node.data : node.shown
      const last = content.at(-1)
      if (shown === "" || node instanceof Element && node.hidden) continue
      if (typeof shown === "string" && typeof last === "string") content.splice(-1, 1, last + shown)
      else content.push(shown)
    }
    return content
  }

  get shown(): Shown {
    return [this.localName, this.className, { ...this.dataset }, this.content]
  }
}

const source = new vm.Script(
  `${
    fs.readFileSync(new URL("../../src/command/page/page.js", import.meta.url), "utf8")
  }\n;({ Chat, log, show: (chat) => { current = chat } })`
)

/** The server of a page. A request without an answer waits for ever. */
export type Serve = (method: string, path: string) => Response | Promise<Response> | undefined

/**
 * Opens the session `s` in a page of its own. The result takes public events, loads or follows the session that the
 * server has, presses buttons, and returns what the page shows.
 */
export const openPage = (serve: Serve = () => undefined) => {
  const elements = new Map<string, Element>()
  const body = new Element("body")
  const { Chat, log, show } = source.runInNewContext({
    AbortController,
    MessageChannel,
    ResizeObserver: class {
      observe(): void {}
    },
    crypto,
    document: {
      activeElement: body,
      addEventListener: () => {},
      body,
      createElement: (tag: string) => new Element(tag),
      createTextNode: (text: string) => new Text(text),
      getElementById: (id: string) => {
        const element = elements.get(id) ?? new Element("section")
        elements.set(id, element)
        return element
      }
    },
    TextDecoderStream,
    fetch: async (path: string, { method }: RequestInit) =>
      await (serve(method ?? "GET", path) ?? new Promise(() => {})),
    history: { replaceState: () => {} },
    location: { hash: "", pathname: "/" },
    performance,
    setInterval: () => {},
    // A pause is one turn of the process.
    setTimeout: setImmediate
  }) as {
    readonly Chat: new(agent: string, id: string, isNew: boolean) => {
      sent: boolean
      readonly follow: () => Promise<void>
      readonly load: () => Promise<void>
      readonly take: (frame: { readonly data: string; readonly event: string }) => Promise<void>
    }
    readonly log: Element
    readonly show: (chat: object) => void
  }
  const chat = new Chat("agent", "s", false)
  show(chat)
  return {
    take: async (event: object): Promise<void> => {
      // A message of this page: those of others would be asked for.
      chat.sent = true
      await chat.take({ data: JSON.stringify(event), event: "message" })
    },
    load: () => chat.load(),
    follow: () => chat.follow(),
    press: (id: string): void => elements.get(id)?.click(),
    textOf: (id: string): string => elements.get(id)?.textContent ?? "",
    shown: (): ReadonlyArray<Shown> => log.content
  }
}
