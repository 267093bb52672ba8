/**
 * Ids of calls, those that are made here and those that are sent. There are servers that refuse ids of more than 40
 * characters: no id that is made here is longer, and one that another made is rewritten before it is sent.
 */

/** How long an id may be that every server takes. */
const longest = 40

/** The beginning of an id, which splits no surrogate pair: a server may refuse half of one. */
const shortened = (id: string, length: number): string => {
  const last = id.length > length ? id.charCodeAt(length - 1) : 0
  return id.slice(0, last >= 0xd800 && last < 0xdc00 ? length - 1 : length)
}

/** An id with a number, which is no longer than every server takes. */
export const numbered = (id: string, count: number): string => {
  const suffix = `_${count}`
  return `${shortened(id, longest - suffix.length)}${suffix}`
}

/** Ids of which no two are the same. Every one takes the same time, however many wanted it before. */
export class UniqueIds {
  private readonly taken = new Set<string>()
  /** By what the numbered ids of several wanted ones begin with alike. */
  private readonly counts = new Map<string, number>()

  /** The id itself, or if it is taken one with a number. */
  take(wanted: string): string {
    const id = this.taken.has(wanted) ? this.next(wanted) : wanted
    this.taken.add(id)
    return id
  }

  private next(wanted: string): string {
    const stem = wanted.slice(0, longest - 12)
    let count = this.counts.get(stem) ?? 1
    let id = ""
    do id = numbered(wanted, ++count)
    while (this.taken.has(id))
    this.counts.set(stem, count)
    return id
  }
}

/** What a protocol asks of ids. */
export interface Rules {
  /** What an id may hold, if not anything: the rest becomes underscores. */
  readonly letters?: "word"
  /** How long it may be, if not as long as every server takes it. */
  readonly longest?: number
  /** Whether a thread may hold an id twice, as it does where a provider begins anew with every turn. */
  readonly mayRepeat: boolean
}

/**
 * The ids of a thread's calls as they are sent, in the order of the thread: an id that a server may refuse becomes another
 * one, which is the same for a call and its answer and in every request, and no other call's.
 */
export class SentIds {
  private readonly rules: Rules
  private readonly unique = new UniqueIds()
  /** By the id in the thread: that of the latest call, as it was sent. */
  private readonly latest = new Map<string, string>()
  /** By the id that was wanted and the one in the thread: the one that stands for it, where ids may repeat. */
  private readonly known = new Map<string, string>()

  constructor(rules: Rules) {
    this.rules = rules
  }

  /** The id of a call. One that the server made itself goes back as it is. */
  called(id: string, isKept = false): string {
    const wanted = isKept ? id : this.plain(id)
    const sent = this.rules.mayRepeat ? this.repeated(wanted, id) : this.unique.take(wanted)
    this.latest.set(id, sent)
    return sent
  }

  /** The id that an answer names. */
  answered(id: string): string {
    return this.latest.get(id) ?? this.plain(id)
  }

  /** Keeps an id that goes back as it is from every other call. */
  reserve(id: string): string {
    this.unique.take(id)
    return id
  }

  private repeated(wanted: string, id: string): string {
    const pair = JSON.stringify([wanted, id])
    const sent = this.known.get(pair) ?? this.unique.take(wanted)
    this.known.set(pair, sent)
    return sent
  }

  private plain(id: string): string {
    const legal = this.rules.letters === undefined ? id : id.replaceAll(/[^A-Za-z0-9_-]/g, "_") || "call"
    return shortened(legal, this.rules.longest ?? longest)
  }
}
