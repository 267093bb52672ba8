/** An agent's session list, as far as read. */
import type * as Client from "./client.ts"

/** Part of the list shown on the page. */
export interface Snapshot {
  readonly sessions: ReadonlyArray<Client.Listed>
  readonly query: string
  readonly hasMore: boolean
  /** Query answered by `sessions`. */
  readonly found: string
  /** `false` until the first reading. */
  readonly isRead: boolean
}

/** Interval in milliseconds for a visible page to read the list again. */
const interval = 15_000

/** Time in milliseconds for gathering changes. */
const gathering = 150

/** Sessions of an agent, until another agent is chosen. */
export class List {
  readonly agent: string
  private readonly client: Client.Client
  private readonly listeners = new Set<() => void>()
  private state: Snapshot = { sessions: [], query: "", found: "", hasMore: false, isRead: false }
  private next: string | undefined
  private pages = 1
  /** Last request number: a late answer to an earlier request is out of date. */
  private last = 0
  private timer: ReturnType<typeof setInterval> | undefined
  private soon: ReturnType<typeof setTimeout> | undefined

  constructor(client: Client.Client, agent: string) {
    this.client = client
    this.agent = agent
  }

  /** Begins reading the list. */
  open(): void {
    this.refresh()
    this.timer = setInterval(() => {
      if (document.visibilityState === "visible") this.refresh()
    }, interval)
    document.addEventListener("visibilitychange", this.refresh)
  }

  /** Ends the list's requests to the server. */
  close(): void {
    clearInterval(this.timer)
    clearTimeout(this.soon)
    document.removeEventListener("visibilitychange", this.refresh)
    this.last++
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

  /** Reads the list again soon, once for all changes until then. */
  readonly refresh = (): void => {
    clearTimeout(this.soon)
    this.soon = setTimeout(() => void this.load(), gathering)
  }

  /** Searches the sessions for a text. */
  readonly search = (query: string): void => {
    this.pages = 1
    this.change({ query })
    this.refresh()
  }

  /** Reads one more page. */
  readonly more = (): void => {
    if (this.next === undefined) return
    this.pages++
    this.refresh()
  }

  private async load(): Promise<void> {
    const request = ++this.last
    const { query } = this.state
    const sessions: Array<Client.Listed> = []
    let next: string | undefined
    try {
      for (let page = 0; page < this.pages; page++) {
        const read = await this.client.list(this.agent, { query, ...(next === undefined ? {} : { next }) })
        if (request !== this.last) return
        sessions.push(...read.sessions)
        next = read.next
        if (next === undefined) break
      }
    } catch {
      // The shown list stays, and is read again at the next change.
      return
    }
    this.next = next
    this.change({ sessions, found: query, hasMore: next !== undefined, isRead: true })
  }
}
