/**
 * What a reply says about its text: the sources it cites, each once, and how likely its words were, in their order.
 */
import type * as Json from "../../internal/json.ts"
import * as Wire from "./wire.ts"

export class Notes {
  private readonly annotations = new Map<string, Json.JsonObject>()
  private readonly logprobs: Array<Json.JsonObject> = []

  add(annotations: ReadonlyArray<Json.JsonObject>, logprobs: unknown): void {
    for (const annotation of annotations) this.annotations.set(JSON.stringify(annotation), annotation)
    const { content, refusal } = Wire.object(logprobs)
    for (const token of [...Wire.list(content), ...Wire.list(refusal)]) this.logprobs.push(token)
  }

  get metadata(): Json.JsonObject {
    return {
      ...(this.annotations.size === 0 ? {} : { annotations: [...this.annotations.values()] }),
      ...(this.logprobs.length === 0 ? {} : { logprobs: this.logprobs })
    }
  }
}
