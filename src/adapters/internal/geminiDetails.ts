/**
 * What a Gemini reply says besides its parts: citations, grounding, safety ratings, probabilities, why a prompt was
 * blocked. The latest word on each counts, but citations and probabilities come piece by piece and are gathered.
 */
import type * as Json from "../../internal/json.ts"
import * as Wire from "./wire.ts"

const partial: { readonly [name: string]: ReadonlyArray<string> } = {
  citationMetadata: ["citationSources", "citations"],
  logprobsResult: ["chosenCandidates", "topCandidates"]
}

export class Details {
  private readonly members = new Map<string, unknown>()
  private readonly lists = new Map<string, Array<unknown>>()
  private readonly citations = new Set<string>()

  add(members: Json.JsonObject): void {
    for (const [name, value] of Object.entries(members)) {
      this.members.set(name, value)
      for (const list of partial[name] ?? []) this.gather(name, list, Wire.object(value)[list])
    }
  }

  private gather(name: string, list: string, values: unknown): void {
    if (!Array.isArray(values)) return
    const key = `${name}.${list}`
    const known = this.lists.get(key) ?? []
    this.lists.set(key, known)
    for (const value of values) {
      if (name !== "citationMetadata" || this.isNew(JSON.stringify(value))) known.push(value)
    }
  }

  private isNew(citation: string): boolean {
    const isNew = !this.citations.has(citation)
    this.citations.add(citation)
    return isNew
  }

  /** The hosted tools that show in nothing but what they found, by the names that requests have for them. */
  get hosted(): ReadonlyArray<readonly [name: string, args: Json.JsonObject]> {
    const { webSearchQueries } = Wire.object(this.members.get("groundingMetadata"))
    const queries = Array.isArray(webSearchQueries) ? webSearchQueries.filter((query) => query !== "") : []
    const urls = Wire.list(Wire.object(this.members.get("urlContextMetadata"))["urlMetadata"])
      .flatMap(({ retrievedUrl }) => typeof retrievedUrl === "string" ? [retrievedUrl] : [])
    return [
      ...(queries.length === 0 ? [] : [["googleSearch", { queries }] as const]),
      ...(urls.length === 0 ? [] : [["urlContext", { urls }] as const])
    ]
  }

  /** All of it. */
  get all(): Json.JsonObject {
    const gathered = Array.from(this.members, ([name, value]) => {
      const lists = (partial[name] ?? []).flatMap((list) => {
        const values = this.lists.get(`${name}.${list}`)
        return values === undefined ? [] : [[list, values] as const]
      })
      return [name, lists.length === 0 ? value : { ...Wire.object(value), ...Object.fromEntries(lists) }] as const
    })
    return Object.fromEntries(gathered)
  }
}
