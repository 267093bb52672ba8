/**
 * Text out of bytes that arrive in pieces cut anywhere. Bytes that are no UTF-8 are not guessed at: what stood before
 * them is read, and nothing after.
 */

const none = new Uint8Array(0)

/** How many bytes a code point has that starts with this one. */
const lengthOf = (lead: number): number => lead < 0xc0 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4

/** The bytes at the end that only begin a code point. */
const begun = (bytes: Uint8Array): Uint8Array => {
  for (let index = bytes.length - 1; index >= Math.max(0, bytes.length - 3); index--) {
    const byte = bytes[index] ?? 0
    if ((byte & 0xc0) !== 0x80) return lengthOf(byte) > bytes.length - index ? bytes.subarray(index) : none
  }
  return none
}

const joined = (left: Uint8Array, right: Uint8Array): Uint8Array => {
  if (left.length === 0) return right
  const both = new Uint8Array(left.length + right.length)
  both.set(left)
  both.set(right, left.length)
  return both
}

export class Decoder {
  /** Whether there were bytes that are no UTF-8. */
  isInvalid = false
  private readonly decoder = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true })
  private held: Uint8Array = none
  private isFirst = true

  decode(bytes: Uint8Array): string {
    if (this.isInvalid) return ""
    const all = joined(this.held, bytes)
    const rest = begun(all)
    const whole = all.subarray(0, all.length - rest.length)
    this.held = rest.slice()
    return this.withoutMark(this.valid(whole))
  }

  /** The byte order mark that a text may start with says nothing. */
  private withoutMark(text: string): string {
    if (!this.isFirst || text === "") return text
    this.isFirst = false
    return text.startsWith("\u{feff}") ? text.slice(1) : text
  }

  private valid(bytes: Uint8Array): string {
    try {
      return this.decoder.decode(bytes)
    } catch {
      this.isInvalid = true
      return this.decoder.decode(bytes.subarray(0, this.validLength(bytes)))
    }
  }

  /** How many of the bytes can be read; the whole is known to be more than that. */
  private validLength(bytes: Uint8Array): number {
    let low = 0
    let high = bytes.length
    while (high - low > 1) {
      const middle = (low + high) >> 1
      if (this.isValid(bytes.subarray(0, middle))) low = middle
      else high = middle
    }
    return this.isValid(bytes.subarray(0, low)) ? low - begun(bytes.subarray(0, low)).length : 0
  }

  /** Whether nothing is wrong with bytes that may end within a code point. */
  private isValid(bytes: Uint8Array): boolean {
    try {
      this.decoder.decode(bytes.subarray(0, bytes.length - begun(bytes).length))
      return true
    } catch {
      return false
    }
  }
}
