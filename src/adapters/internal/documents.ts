/**
 * JSON objects out of lines that belong to no event: a stream that is one JSON array instead of events, an error that
 * breaks a stream off, a whole reply. An object is there as soon as its last line is. The work is linear in the lines,
 * and only an object that is still open is held.
 */

/** What may stand before an object, and between two objects of a list. */
const between = /^[\s,[\]]*(\{|$)/

export class Documents {
  /** The object that is still open. */
  held = ""
  private depth = 0
  private isInString = false

  /** The objects that are complete with this line; nothing if the line belongs to no object. */
  feed(line: string): ReadonlyArray<string> | undefined {
    if (this.depth === 0 && !between.test(line)) return undefined
    const found: Array<string> = []
    const mark = /["\\{}]/g
    let start = 0
    for (let at = mark.exec(line); at !== null; at = mark.exec(line)) {
      const depth = this.depth
      if (at[0] === "\\") mark.lastIndex = at.index + 2
      else this.step(at[0])
      if (depth === 0 && this.depth === 1) start = at.index
      if (depth !== 1 || this.depth !== 0) continue
      found.push(this.held + line.slice(start, at.index + 1))
      this.held = ""
    }
    if (this.depth > 0) this.held += `${line.slice(start)}\n`
    return found
  }

  private step(mark: string): void {
    if (mark === "\"") this.isInString = this.depth > 0 && !this.isInString
    else if (!this.isInString) this.depth = Math.max(0, this.depth + (mark === "{" ? 1 : -1))
  }
}
