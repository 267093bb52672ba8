/**
 * State of the page: the agents, the chosen agent, its session list, and the shown session. The address names the
 * chosen agent and the shown session, as `#AGENT/SESSION`.
 */
import * as Client from "./client.ts"
import * as Lists from "./list.ts"
import * as Store from "./store.ts"

/** Part of the state shown beside the session. */
export interface Snapshot {
  /** Agents. Absent until known. */
  readonly agents: ReadonlyArray<Client.Agent> | undefined
  /** Facts about the chosen agent. */
  readonly facts: Client.Facts | undefined
  readonly list: Lists.List | undefined
  readonly session: Store.Session | undefined
  /** Ids of sessions with typed but unsent text. */
  readonly drafted: ReadonlySet<string>
  /** Reason for showing nothing, or not showing the session in the address. */
  readonly notice: string
}

const placeOf = (hash: string): readonly [agent: string, id: string | undefined] => {
  const [agent = "", id = ""] = hash.slice(1).split("/").map((part) => {
    try {
      return decodeURIComponent(part)
    } catch {
      return ""
    }
  })
  return [agent, id === "" ? undefined : id]
}

/** Returns a session's address, or the address for a new session. */
export const addressOf = (agent: string, id?: string): string =>
  `#${encodeURIComponent(agent)}${id === undefined ? "" : `/${encodeURIComponent(id)}`}`

/** State of a page, lasting as long as the page. */
export class Studio {
  readonly client: Client.Client
  /** Typed but unsent texts, by session. Kept only in memory. */
  private readonly drafts = new Map<string, string>()
  /** Sentences about newly begun branches, by session. */
  readonly warnings = new Map<string, string>()
  private readonly listeners = new Set<() => void>()
  /** Other pages in this browser. After one of them sends a message, they read its session again. */
  private others: BroadcastChannel | undefined
  private readonly facts = new Map<string, Client.Facts>()
  /** Message at which to show a session, by session id. `""` is the first message after its branch point. */
  readonly places = new Map<string, string>()
  private state: Snapshot = {
    agents: undefined,
    facts: undefined,
    list: undefined,
    session: undefined,
    drafted: new Set(),
    notice: ""
  }

  constructor(client: Client.Client) {
    this.client = client
  }

  readonly subscribe = (listener: () => void): () => void => {
    this.listeners.add(listener)
    return () => void this.listeners.delete(listener)
  }

  readonly read = (): Snapshot => this.state

  private change(state: Partial<Snapshot>): void {
    this.state = { ...this.state, ...state }
    for (const listener of this.listeners) listener()
  }

  /** Returns the typed but unsent text for a session. */
  draftOf(id: string): string {
    return this.drafts.get(id) ?? ""
  }

  /** Stores a text being typed for a session. */
  keepDraft(id: string, text: string): void {
    const { drafted } = this.state
    if (text === "") this.drafts.delete(id)
    else this.drafts.set(id, text)
    if (drafted.has(id) !== this.drafts.has(id)) this.change({ drafted: new Set(this.drafts.keys()) })
  }

  /** Reads the agents, and shows the session in the address. */
  async start(): Promise<void> {
    addEventListener("hashchange", () => this.show())
    addEventListener("focus", () => void this.state.session?.look())
    this.others = new BroadcastChannel("heddle-studio")
    this.others.addEventListener("message", ({ data }) => {
      if (data === this.state.session?.id) void this.state.session?.look()
    })
    try {
      this.change({ agents: await this.client.agents() })
    } catch (error) {
      const sentence = error instanceof Error ? error.message : ""
      return this.change({ notice: `${sentence} Load the page again.` })
    }
    this.show()
  }

  /** Shows the session in the address, existing or new. */
  private show(): void {
    const { agents = [], list, session } = this.state
    const [named, id] = placeOf(location.hash)
    const agent = agents.find(({ name }) => name === named)?.name ?? agents[0]?.name
    if (agent === undefined) return this.change({ notice: "The server has no agent that you may use." })
    if (session?.agent === agent && session.id === id && session.read().state !== "gone") return
    session?.close()
    const next = new Store.Session(
      this.client,
      agent,
      agent === named ? id : undefined,
      () => this.state.list?.refresh()
    )
    const isKept = list?.agent === agent
    if (!isKept) list?.close()
    const nextList = isKept ? list : new Lists.List(this.client, agent)
    const notice = named === "" || named === agent ? "" : "The address names no agent that you may use."
    this.change({ session: next, list: nextList, facts: this.facts.get(agent), notice })
    next.open()
    if (!isKept) nextList.open()
    if (!this.facts.has(agent)) void this.learn(agent)
  }

  private async learn(agent: string): Promise<void> {
    const { description = "" } = this.state.agents?.find(({ name }) => name === agent) ?? {}
    // A page without facts has the name and the description.
    const facts = await this.client.facts(agent).catch((): Client.Facts => ({ name: agent, description }))
    this.facts.set(agent, facts)
    if (this.state.session?.agent === agent) this.change({ facts })
  }

  /** Shows a new session. */
  readonly begin = (agent = this.state.session?.agent ?? ""): void => {
    // The address may already belong to a new session.
    if (location.hash === addressOf(agent)) {
      this.state.session?.close()
      this.change({ session: undefined })
      this.show()
    } else location.hash = addressOf(agent)
  }

  /** Sends a message. From then on the address names its session. */
  async send(content: string, mode?: Client.Mode): Promise<string | undefined> {
    const { session } = this.state
    if (session === undefined) return undefined
    const isNew = session.read().state === "new"
    const refused = await session.send(content, mode)
    this.others?.postMessage(session.id)
    if (refused === undefined && isNew && this.state.session === session) {
      history.replaceState(null, "", addressOf(session.agent, session.id))
    }
    return refused
  }

  /** Withdraws a message. Succeeds with a sentence if refused, or too late. */
  async withdraw(message: string): Promise<string | undefined> {
    const { session } = this.state
    const refused = await session?.withdraw(message)
    this.others?.postMessage(session?.id)
    return refused
  }

  /**
   * Begins a branch before a message, with other content or the same again. `known` are the names of calls whose
   * effects the person has accepted. Succeeds with a sentence if refused.
   */
  async branch(
    message: Client.Said,
    content: Client.Said["content"],
    known: ReadonlyArray<string> = []
  ): Promise<string | undefined> {
    const { session } = this.state
    if (session === undefined) return undefined
    const id = Client.newId()
    try {
      const { calls = [] } = await this.client.fork(session.agent, session.id, { id, before: message.id, content })
      const names = Array.from(new Set(calls.map(({ name }) => name))).filter((name) => !known.includes(name))
      if (names.length > 0) {
        this.warnings.set(id, `What these calls did before the branch stays done: ${names.join(", ")}.`)
      }
    } catch (error) {
      return error instanceof Error ? error.message : ""
    }
    location.hash = addressOf(session.agent, id)
    return undefined
  }

  /** Shows another branch at its branching message: `""` for the first message of its own. */
  readonly stepTo = (agent: string, id: string, message: string): void => {
    this.places.set(id, message)
    location.hash = addressOf(agent, id)
  }

  /** Deletes a session. Succeeds with a sentence if refused. */
  async remove(agent: string, id: string): Promise<string | undefined> {
    const { session } = this.state
    const isShown = session?.agent === agent && session.id === id
    const refused = isShown
      ? await session.remove()
      : await this.client.remove(agent, id).then(() => undefined, (error: Error) => error.message)
    if (refused !== undefined) return refused
    this.keepDraft(id, "")
    this.state.list?.refresh()
    if (isShown) this.begin(agent)
    return undefined
  }

  /** Names or pins a session. Succeeds with a sentence if refused. */
  async label(
    agent: string,
    id: string,
    label: { readonly title?: string; readonly pinned?: boolean }
  ): Promise<string | undefined> {
    const refused = await this.client.label(agent, id, label).then(() => undefined, (error: Error) => error.message)
    this.state.list?.refresh()
    const { session } = this.state
    if (session?.agent === agent && session.id === id) void session.learn()
    return refused
  }
}
