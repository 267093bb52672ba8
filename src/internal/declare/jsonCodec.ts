/**
 * What a model or a user writes, in JSON, read by a Schema. It is Schema's own JSON codec but for numbers: that one
 * writes `NaN` and the infinities as words and reads them back, so that a model is offered three words beside each
 * number and is told of them when it writes `"5"`. A number is a JSON number here, and a finite one.
 */
import * as Schema from "effect/Schema"
import * as SchemaAST from "effect/SchemaAST"

const finite = Schema.Number.check(Schema.isFinite())

/** How Schema reads a number of any kind from JSON. */
const fromWords = Schema.toCodecJson(Schema.Number).ast.encoding?.[0].transformation

const copy = <A extends SchemaAST.AST>(ast: A, changes: Partial<A>): A =>
  Object.assign(Object.create(Object.getPrototypeOf(ast)), ast, changes)

/** A number that is read as it stands. What it is refused with names a number and nothing else. */
const asNumber = (ast: SchemaAST.Number): SchemaAST.Number =>
  new SchemaAST.Number(
    { message: "Expected a number", ...ast.annotations },
    [...(ast.checks ?? []), ...(finite.ast.checks ?? [])] as unknown as SchemaAST.Checks,
    undefined,
    ast.context
  )

/** The schema of what is written, with numbers that are finite. A schema may hold itself, so each part is made once. */
const mending = (): (ast: SchemaAST.AST) => SchemaAST.AST => {
  const made = new Map<SchemaAST.AST, SchemaAST.AST>()
  const mend = (ast: SchemaAST.AST): SchemaAST.AST => {
    const known = made.get(ast) ?? mended(ast)
    made.set(ast, known)
    return known
  }
  const mended = (ast: SchemaAST.AST): SchemaAST.AST => {
    const { encoding } = ast
    const last = encoding?.at(-1)
    if (encoding === undefined || last === undefined) return inside(ast)
    if (SchemaAST.isNumber(ast) && last.transformation === fromWords) return asNumber(ast)
    const to = mend(last.to)
    if (to === last.to) return ast
    const links = [...encoding.slice(0, -1), new SchemaAST.Link(to, last.transformation)]
    return copy(ast, { encoding: links as unknown as SchemaAST.Encoding })
  }
  const inside = (ast: SchemaAST.AST): SchemaAST.AST => {
    switch (ast._tag) {
      case "Number":
        return asNumber(ast)
      case "Arrays":
        return copy(ast, { elements: ast.elements.map(mend), rest: ast.rest.map(mend) })
      case "Objects":
        return copy(ast, {
          propertySignatures: ast.propertySignatures.map(({ name, type }) =>
            new SchemaAST.PropertySignature(name, mend(type))
          ),
          indexSignatures: ast.indexSignatures.map(({ parameter, type }) =>
            new SchemaAST.IndexSignature(mend(parameter), mend(type))
          )
        })
      case "Union":
        return copy(ast, { types: ast.types.map(mend) })
      case "Suspend":
        return new SchemaAST.Suspend(() => mend(ast.thunk()), ast.annotations, undefined, undefined, ast.context)
      default:
        return ast
    }
  }
  return mend
}

/** Where a chain of encodings ends. */
const written = (ast: SchemaAST.AST): SchemaAST.AST => {
  const last = ast.encoding?.at(-1)
  return last === undefined ? ast : written(last.to)
}

const mayBeObject = (ast: SchemaAST.AST): boolean => {
  switch (ast._tag) {
    case "Objects":
    case "ObjectKeyword":
    case "Unknown":
    case "Any":
    case "Declaration":
    case "Suspend":
      return true
    case "Union":
      return ast.types.some((type) => mayBeObject(written(type)))
    default:
      return false
  }
}

/** Whether a schema may read a JSON object. The codec is made only for one that does not show it. */
export const readsObject = (schema: Schema.Constraint): boolean =>
  SchemaAST.isObjects(written(schema.ast)) || mayBeObject(written(Schema.toCodecJson(schema).ast))

/** The codec from JSON to what a schema decodes to. */
export const make = <S extends Schema.Constraint>(schema: S): Schema.toCodecJson<S> =>
  Schema.make(mending()(Schema.toCodecJson(schema).ast), { schema })

/**
 * Whether what a codec decodes shares no object with what it was given: it makes each struct, record and list anew, and
 * hands out what it knows nothing of as it is.
 */
export const isFresh = (codec: Schema.Constraint): boolean => {
  const seen = new Set<SchemaAST.AST>()
  const isMade = (ast: SchemaAST.AST): boolean => {
    if (seen.has(ast)) return true
    seen.add(ast)
    const last = ast.encoding?.at(-1)
    if (last !== undefined) return isMade(last.to)
    switch (ast._tag) {
      case "Unknown":
      case "Any":
      case "ObjectKeyword":
      case "Declaration":
        return false
      case "Arrays":
        return [...ast.elements, ...ast.rest].every(isMade)
      case "Objects": {
        const members = [...ast.propertySignatures, ...ast.indexSignatures]
        return members.length > 0 && members.every(({ type }) => isMade(type))
      }
      case "Union":
        return ast.types.every(isMade)
      case "Suspend":
        return isMade(ast.thunk())
      default:
        return true
    }
  }
  return isMade(codec.ast)
}
