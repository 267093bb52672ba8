/**
 * Finds the fields of public types that no doc comment of their own explains.
 */
import * as path from "node:path"
import { lineAt, readSource, root } from "./source.ts"
import { forget as forgetTexts, serviceOf, ts } from "./typescript.ts"

const sources = path.join(root, "src") + path.sep

/** The modules that the package exports, and those that stand in their `index.ts`. */
const modulesOf = (checker: ts.TypeChecker, file: ts.SourceFile): ReadonlyArray<ts.Symbol> => {
  const module = checker.getSymbolAtLocation(file)
  return module === undefined ? [] : [module]
}

const resolved = (checker: ts.TypeChecker, symbol: ts.Symbol): ts.Symbol =>
  (symbol.flags & ts.SymbolFlags.Alias) === 0 ? symbol : checker.getAliasedSymbol(symbol)

const isOwn = (declaration: ts.Declaration): boolean => declaration.getSourceFile().fileName.startsWith(sources)

/** Every type that modules export, by the name that a user knows it by. */
const exportedTypes = (checker: ts.TypeChecker, module: ts.Symbol, prefix = ""): ReadonlyArray<[string, ts.Symbol]> =>
  checker.getExportsOfModule(module).flatMap((exported): ReadonlyArray<[string, ts.Symbol]> => {
    const symbol = resolved(checker, exported)
    const name = prefix + exported.name
    if ((symbol.flags & ts.SymbolFlags.Module) !== 0) return exportedTypes(checker, symbol, `${name}.`)
    return (symbol.flags & ts.SymbolFlags.Type) === 0 ? [] : [[name, symbol]]
  })

type Enters = (type: ts.Type) => boolean

/** The fields of a type, with those of the object types below it that are entered. */
const fieldsOf = (
  checker: ts.TypeChecker,
  type: ts.Type,
  name: string,
  enters: Enters,
  seen = new Set<ts.Type>()
): ReadonlyArray<[string, ts.Symbol]> => {
  if (seen.has(type)) return []
  seen.add(type)
  const below = (inner: ts.Type, path: string) => enters(inner) ? fieldsOf(checker, inner, path, enters, seen) : []
  if (type.isUnionOrIntersection()) return type.types.flatMap((member) => below(member, name))
  if (checker.isArrayType(type) || checker.isTupleType(type)) {
    return checker.getTypeArguments(type as ts.TypeReference).flatMap((item) => below(item, name))
  }
  if ((type.flags & ts.TypeFlags.Object) === 0 || type.getCallSignatures().length > 0) return []
  return type.getProperties().flatMap((field): ReadonlyArray<[string, ts.Symbol]> => {
    if (field.declarations?.find(isOwn) === undefined) return []
    const path = `${name}.${field.name}`
    return [[path, field], ...below(checker.getTypeOfSymbol(field), path)]
  })
}

/** Whether a type has no name of its own. */
const isNameless: Enters = (type) =>
  type.isUnionOrIntersection() || type.symbol === undefined || /^(__|Array$|ReadonlyArray$)/.test(type.symbol.name)

/** What needs no words: the kind of a member of a union, the message of an error, and what only carries a type. */
const isPlain = (checker: ts.TypeChecker, field: ts.Symbol, declaration: ts.Declaration): boolean =>
  field.name === "_tag" || field.name.startsWith("~") || field.name.startsWith("__@") ||
  (field.name === "type" && checker.getTypeOfSymbol(field).isStringLiteral()) ||
  (field.name === "message" && ts.isGetAccessor(declaration))

/** The files that the package exports its modules from. */
const entries: ReadonlyArray<string> = [
  "src/index.ts",
  "src/adapters/index.ts",
  "src/bridges/index.ts",
  "src/cluster/index.ts",
  "src/durable/index.ts",
  "src/mcp/index.ts",
  "src/server/index.ts",
  "src/sql/index.ts",
  "src/telemetry/index.ts",
  "src/testing/index.ts",
  "src/ui/index.ts"
]

let ofEntries: ts.Program | undefined

/** The program of all entries, which is read and checked once for all that is asked of it. */
const programOfEntries = (): ts.Program =>
  ofEntries ??= serviceOf(Object.fromEntries(entries.map((file) => [file, readSource(file).text]))).getProgram()!

/** Lets go of the program and its texts. */
export const forget = (): void => {
  ofEntries = undefined
  forgetTexts()
}

/**
 * The fields of the types that some modules export and that have no doc comment, each as `src/Chat.ts:12 Options.name`.
 * A field is explained where it is declared, once for every type that has it. The modules are those of the package unless
 * texts are given.
 */
export const undocumentedFields = (files?: { readonly [file: string]: string }): ReadonlyArray<string> => {
  const program = files === undefined ? programOfEntries() : serviceOf(files).getProgram()!
  const checker = program.getTypeChecker()
  const found = new Map<ts.Declaration, string>()
  for (const file of files === undefined ? entries : Object.keys(files)) {
    const source = program.getSourceFile(path.join(root, file))
    if (source === undefined) throw new Error(`there is no file ${file}`)
    for (const module of modulesOf(checker, source)) {
      for (const [name, symbol] of exportedTypes(checker, module)) {
        for (const [path_, field] of fieldsOf(checker, checker.getDeclaredTypeOfSymbol(symbol), name, () => true)) {
          const declaration = field.declarations?.find(isOwn)
          if (declaration === undefined || found.has(declaration) || isPlain(checker, field, declaration)) continue
          if (field.getDocumentationComment(checker).length > 0) continue
          const place = declaration.getSourceFile()
          const line = lineAt(place.text, declaration.getStart(place))
          found.set(declaration, `${path.relative(root, place.fileName)}:${line} ${path_}`)
        }
      }
    }
  }
  return [...found.values()].toSorted()
}

/** A type of options, as `Chat.Options`, and the place where a caller writes them: that of `Chat` unless it is given. */
export type OptionsType = string | readonly [type: string, place: string]

/**
 * The options of some types that the modules of a file export, each in its place: `Chat.maxTurns` of `Chat.Options`. An option
 * that several of the types have is the first one's; `siblings: { queued }` is `siblings` and `siblings.queued`.
 */
export const optionsOf = (types: ReadonlyArray<OptionsType>, file = "src/index.ts"): ReadonlyArray<string> => {
  const program = programOfEntries()
  const checker = program.getTypeChecker()
  const exported = new Map(
    exportedTypes(checker, checker.getSymbolAtLocation(program.getSourceFile(path.join(root, file))!)!)
  )
  const seen = new Set<ts.Declaration>()
  return types.flatMap((given) => {
    const [type, place] = typeof given === "string" ? [given, given.slice(0, given.indexOf("."))] : given
    const symbol = exported.get(type)
    if (symbol === undefined) throw new Error(`there is no type ${type}`)
    return fieldsOf(checker, checker.getDeclaredTypeOfSymbol(symbol), place, isNameless).flatMap(([name, field]) => {
      const declaration = field.declarations?.find(isOwn)
      if (declaration === undefined || seen.has(declaration) || isPlain(checker, field, declaration)) return []
      seen.add(declaration)
      return [name]
    })
  })
}
