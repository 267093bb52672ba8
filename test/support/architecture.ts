/**
 * The rules that the sources obey as a whole, as functions over texts, so that the same functions judge the real tree
 * and modules that are planted to break them. A rule looks at syntax, never at words: comments and strings cannot
 * break it, and a name cannot hide from it by formatting.
 */
import { parseSync, type StaticExport, type StaticImport } from "oxc-parser"
import { isNode, lineAt, type Node, type SourceText, walk } from "./source.ts"

/** The public modules of the core in the order in which they are read: each may import only what stands before it. */
export const order: ReadonlyArray<string> = [
  "Message",
  "Response",
  "Thread",
  "Tool",
  "Event",
  "Policy",
  "Pricing",
  "Budget",
  "Inbox",
  "Limits",
  "Adapter",
  "Collector",
  "Executor",
  "Encoder",
  "ToolRunner",
  "Rule",
  "Output",
  "Step",
  "Chat",
  "Journal",
  "Session",
  "StreamingToolExecutor"
]

/**
 * The rooms of `src/internal` in the order in which they are built on one another: each may import only what stands before
 * it. `json` and `telemetry` are files, the others folders.
 */
export const rooms: ReadonlyArray<string> = [
  "json",
  "telemetry",
  "declare",
  "ask",
  "permits",
  "stop",
  "hear",
  "answer",
  "fold",
  "decide",
  "run",
  "loop",
  "session"
]

/**
 * The modules of the room `session` in the order in which they are built on one another: each may import only those of the
 * room that stand before it.
 */
export const sessionModules: ReadonlyArray<string> = [
  "data",
  "records",
  "state",
  "journal",
  "nested",
  "claim",
  "writer",
  "events",
  "kept",
  "storedCommands",
  "settling",
  "resumption",
  "operations",
  "run",
  "drive"
]

export interface Violation {
  readonly rule: Rule
  readonly place: string
  readonly message: string
}

/** All violations of all rules, file by file. `stable` holds the stable modules of effect, such as `effect/Stream`. */
export const violations = (
  sources: ReadonlyArray<SourceText>,
  stable: ReadonlySet<string>
): ReadonlyArray<Violation> => {
  const files = sources.map((source) => inspect(source, stable))
  const circles = circlesOf(files)
  const names = namesOf(files)
  return files.flatMap((file) =>
    ruleNames.flatMap((rule) =>
      rules[rule].faults(file, circles, names).map(({ message, offset }) => ({
        rule,
        place: `${file.path}:${lineAt(file.text, offset)}`,
        message
      }))
    )
  )
}

/**
 * The modules of effect marked stable, by their import paths. A module's mark stands in its first doc comment; index
 * files mark what they export, not themselves, so that importing one is importing no stable module.
 */
export const stableModules = (effectSources: ReadonlyArray<SourceText>): ReadonlySet<string> =>
  new Set(
    effectSources.flatMap(({ path, text }) => {
      const mark = /@stability (\w+)/.exec(/\/\*\*[^]*?\*\//.exec(text)?.[0] ?? "")?.[1]
      const isPublic = !path.includes("/internal/") && !isIndex(path)
      return isPublic && mark === "stable" ? [path.replace(/^.*?\/src\//, "effect/").replace(/\.ts$/, "")] : []
    })
  )

/** Names each file that has the name of an earlier one. The index of a folder goes by the name of the folder. */
export const namesakes = (sources: ReadonlyArray<SourceText>): ReadonlyArray<string> => {
  const paths = new Map<string, string>()
  return sources.filter(({ path }) => !isIndex(path)).flatMap(({ path }) => {
    // Studio is a program of its own.
    const name = areaOf(path) === "studio" ? `studio/${moduleName(path)}` : moduleName(path)
    const earlier = paths.get(name)
    paths.set(name, path)
    return earlier === undefined ? [] : [`${path} has the name of ${earlier}`]
  })
}

interface Fault {
  readonly offset: number
  readonly message: string
}

interface Import {
  readonly specifier: string
  /** The path of the imported file, if it is one of ours. */
  readonly target: string | undefined
  readonly isType: boolean
  /** What the module is called, if it is imported as a whole. */
  readonly alias: string | undefined
  readonly offset: number
}

interface File {
  readonly path: string
  readonly area: Area
  readonly text: string
  readonly body: Node
  readonly imports: ReadonlyArray<Import>
  readonly opensWithComment: boolean
  readonly stable: ReadonlySet<string>
}

/** What each internal module is called where it is imported first, and which module has each name. */
interface Names {
  readonly aliases: ReadonlyMap<string, string>
  readonly targets: ReadonlyMap<string, string>
}

/** The circle that a file stands in: the paths of all files that it imports, directly or not, and that import it. */
type Circles = ReadonlyMap<string, ReadonlySet<string>>

type Area =
  | "index"
  | "core"
  | "internal"
  | "adapters"
  | "bridges"
  | "cluster"
  | "command"
  | "durable"
  | "mcp"
  | "server"
  | "sql"
  | "studio"
  | "telemetry"
  | "testing"
  | "ui"

const forbiddenGlobals = new Set(["Date", "setTimeout", "setInterval", "setImmediate", "performance"])
/** The one module that sets timers: where the clock is the live one, they need no fiber. */
const timers = "src/internal/stop/timers.ts"
const nodeGlobals = new Set(["process", "require", "Buffer"])

const listed = (file: File): ReadonlyArray<Fault> =>
  file.area !== "core" || order.includes(moduleName(file.path))
    ? []
    : [{ offset: 0, message: `${moduleName(file.path)} has no place in the order` }]

const ordered = (file: File): ReadonlyArray<Fault> =>
  file.area !== "core" ?
    [] :
    importsIn(file, "core").flatMap(({ name, offset }) =>
      order.includes(name) && order.indexOf(name) < order.indexOf(moduleName(file.path))
        ? []
        : [{ offset, message: `imports ${name}, which does not stand before it` }]
    )

const outward = (file: File): ReadonlyArray<Fault> =>
  ([
    "adapters",
    "bridges",
    "cluster",
    "command",
    "durable",
    "mcp",
    "server",
    "sql",
    "studio",
    "telemetry",
    "testing",
    "ui"
  ] as const)
    .filter((area) => area !== file.area)
    .flatMap((area) =>
      importsIn(file, area).filter(({ target }) => !isShared(file, target)).map(({ offset, target }) => ({
        offset,
        message: `imports ${target}`
      }))
    )

/** The areas of which others are made: a server is a worker with pages, and the command a server or a worker, and a store. */
const madeOf: Readonly<Partial<Record<Area, ReadonlyArray<Area>>>> = {
  command: ["durable", "server", "sql"],
  mcp: ["durable", "server", "ui"],
  server: ["durable", "ui"]
}

/**
 * A bridge is an adapter whose wire is another library, the tools of MCP servers have media, and an owner on a cluster
 * drives sessions as a worker does: what adapters and workers share these share too.
 */
const isShared = (file: File, target: string | undefined): boolean =>
  (file.area === "bridges" || file.area === "mcp") && target?.startsWith("src/adapters/internal/") === true
  || file.area === "cluster" && target?.startsWith("src/durable/internal/") === true
  || target !== undefined && madeOf[file.area]?.includes(areaOf(target)) === true

const bundled = (file: File): ReadonlyArray<Fault> =>
  file.area !== "studio" ?
    [] :
    file.imports.flatMap(({ isType, offset, specifier, target }) => {
      const area = target === undefined ? undefined : areaOf(target)
      const isAllowed = target === undefined ? !isEffect(specifier) : area === "studio" || area === "core" && isType
      return isAllowed ? [] : [{ offset, message: `imports ${target ?? specifier}` }]
    })

/** The internal modules that pages are written with. */
const ofPages: ReadonlyArray<string> = [
  "src/internal/json.ts",
  "src/internal/answer/callPath.ts",
  "src/internal/fold/deltas.ts",
  "src/internal/answer/teller.ts",
  "src/internal/declare/schema.ts",
  "src/internal/declare/values.ts",
  "src/internal/fold/publicEvent.ts"
]

const paged = (file: File): ReadonlyArray<Fault> =>
  file.area !== "ui" ?
    [] :
    importsIn(file, "internal").flatMap(({ offset, target }) =>
      target === undefined || ofPages.includes(target) ? [] : [{ offset, message: `imports ${target}` }]
    )

const barrels = (file: File): ReadonlyArray<Fault> =>
  file.imports.flatMap(({ offset, target }) =>
    target !== undefined && isIndex(target) ? [{ offset, message: `imports ${target}` }] : []
  )

/** A module that is there for one function may go by that function: `everyStep` of `EveryStep.ts`. */
const isOwnFunction = (statement: Node, from: unknown): boolean => {
  const specifiers = statement.type === "ExportNamedDeclaration" ? statement.specifiers as ReadonlyArray<Node> : []
  const [only] = specifiers
  if (only === undefined || specifiers.length > 1) return false
  const name = String((only.exported as Node).name)
  const isRenamed = (only.local as Node).name !== name
  return !isRenamed && /^[a-z]/.test(name) && from === `./${name.charAt(0).toUpperCase()}${name.slice(1)}.ts`
}

const indexes = (file: File): ReadonlyArray<Fault> =>
  !isIndex(file.path) ? [] : (file.body.body as ReadonlyArray<Node>).flatMap((statement) => {
    const exported = statement.exported as Node | null | undefined
    const from = (statement.source as Node | null | undefined)?.value
    const isNamespace = exported !== null && exported !== undefined && from === `./${String(exported.name)}.ts`
    return isNamespace || isOwnFunction(statement, from)
      ? []
      : [{ offset: statement.start, message: "not export * as Name from \"./Name.ts\"" }]
  })

const stableOnly = (file: File): ReadonlyArray<Fault> =>
  !["core", "internal", "ui"].includes(file.area) ?
    [] :
    file.imports.flatMap(({ offset, specifier }) =>
      isEffect(specifier) && !file.stable.has(specifier) ? [{ offset, message: `imports ${specifier}` }] : []
    )

/** The client of the protocol of `mcp`. */
const ofMcp = /^@modelcontextprotocol\/client(\/(stdio|validators\/ajv))?$/

/** The modules of Node, and the package that brings it to Effect. */
const ofNode = /^node:|^@effect\/platform-node\//

const packages = (file: File): ReadonlyArray<Fault> =>
  file.imports.flatMap(({ offset, specifier, target }) => {
    const isAllowed = target !== undefined || isEffect(specifier) ||
      (file.area === "studio" && !specifier.startsWith("node:")) ||
      (specifier.startsWith("node:") && file.area === "testing") ||
      (specifier === "node:sqlite" && file.area === "sql") ||
      (specifier === "partial-json" && file.path === "src/internal/loop/outputRule.ts") ||
      (ofMcp.test(specifier) && file.path === "src/mcp/internal/sdk.ts") ||
      // The process of a server, which is loaded with it.
      (/^(@modelcontextprotocol\/client\/stdio|node:child_process|node:process)$/.test(specifier) &&
        file.path === "src/mcp/internal/serverProcess.ts") ||
      // The command imports the module that it is given.
      (specifier === "undefined" && file.area === "command") ||
      (ofNode.test(specifier) &&
        (file.area === "command" || ["src/mcp/McpServer.ts", "src/server/Server.ts"].includes(file.path)))
    return isAllowed ? [] : [{ offset, message: `imports ${specifier}` }]
  })

const runtime = (file: File): ReadonlyArray<Fault> => {
  if (file.area === "command" || file.area === "studio") return []
  const faults: Array<Fault> = []
  walk(file.body, (node, parent) => {
    if (node.async === true) faults.push({ offset: node.start, message: "async function" })
    if (node.type === "AwaitExpression" || node.await === true) faults.push({ offset: node.start, message: "await" })
    const name = globalName(node, parent)
    const isTheTimer = file.path === timers && name === "setTimeout"
    if (name !== undefined && !isTheTimer) faults.push({ offset: node.start, message: name })
  })
  return faults
}

const nodeless = (file: File): ReadonlyArray<Fault> => {
  if (["command", "sql", "testing"].includes(file.area)) return []
  const faults: Array<Fault> = []
  walk(file.body, (node, parent) => {
    const name = globalName(node, parent, nodeGlobals)
    const isTheTimer = file.path === timers && name === "setTimeout"
    if (name !== undefined && !isTheTimer) faults.push({ offset: node.start, message: name })
  })
  return faults
}

/** An import that leads back. A type counts as well: what is understood first has to stand below what is built on it. */
const circular = (file: File, circles: Circles): ReadonlyArray<Fault> =>
  file.imports.flatMap(({ offset, target }) =>
    target !== undefined && circles.get(file.path)?.has(target) === true
      ? [{ offset, message: `imports ${target}, which leads back to it` }]
      : []
  )

/** A reader of one file knows the names in the next: an internal module has one name, and no other module has that. */
const named = (file: File, _: Circles, { aliases, targets }: Names): ReadonlyArray<Fault> =>
  file.imports.flatMap(({ alias, offset, target }) => {
    if (alias === undefined || target === undefined || areaOf(target) !== "internal") return []
    const usual = aliases.get(target)
    if (usual !== alias) return [{ offset, message: `calls ${target} ${alias}, which is ${usual} elsewhere` }]
    const other = targets.get(alias)
    return other === target ? [] : [{ offset, message: `calls ${target} ${alias}, as ${other} is called` }]
  })

/** The first import of a module names it. */
const namesOf = (files: ReadonlyArray<File>): Names => {
  const aliases = new Map<string, string>()
  const targets = new Map<string, string>()
  for (const { alias, target } of files.flatMap(({ imports }) => imports)) {
    if (alias === undefined || target === undefined || areaOf(target) !== "internal") continue
    if (!aliases.has(target)) aliases.set(target, alias)
    if (!targets.has(alias)) targets.set(alias, target)
  }
  return { aliases, targets }
}

const roomOf = (path: string): string | undefined => /^src\/internal\/([^/]+?)(?:\.ts)?(?:\/|$)/.exec(path)?.[1]

const housed = (file: File): ReadonlyArray<Fault> => {
  const room = roomOf(file.path)
  if (room === undefined) return []
  const isFile = file.path === `src/internal/${room}.ts`
  const isHoused = isFile ? room === "json" || room === "telemetry" : rooms.indexOf(room) > 1
  if (!isHoused) return [{ offset: 0, message: `${room} is no room` }]
  return file.imports.flatMap(({ offset, target }) => {
    const other = target === undefined ? undefined : roomOf(target)
    const isBefore = other !== undefined && rooms.slice(0, rooms.indexOf(room)).includes(other)
    return other === undefined || other === room || isBefore
      ? []
      : [{ offset, message: `imports ${target}, which does not stand before it` }]
  })
}

const isOfSessions = (path: string | undefined): path is string =>
  path !== undefined && path.startsWith("src/internal/session/")

const built = (file: File): ReadonlyArray<Fault> => {
  if (!isOfSessions(file.path)) return []
  const place = sessionModules.indexOf(moduleName(file.path))
  if (place < 0) return [{ offset: 0, message: `${moduleName(file.path)} has no place in the room` }]
  return file.imports.flatMap(({ offset, target }) => {
    if (!isOfSessions(target) || sessionModules.slice(0, place).includes(moduleName(target))) return []
    return [{ offset, message: `imports ${target}, which does not stand before it` }]
  })
}

/** The areas that may look into the room of sessions: the core, and what tests a journal record by record. */
const ofTheCore: ReadonlySet<Area> = new Set(["core", "internal", "index", "testing"])

const surfaced = (file: File): ReadonlyArray<Fault> =>
  ofTheCore.has(file.area) ?
    [] :
    file.imports.flatMap(({ offset, target }) =>
      isOfSessions(target) ? [{ offset, message: `imports ${target}, in place of Session or Journal` }] : []
    )

const header = (file: File): ReadonlyArray<Fault> =>
  file.opensWithComment || file.text.startsWith("#!/usr/bin/env node\n/**")
    ? []
    : [{ offset: 0, message: "does not open with a comment" }]

/** What each rule demands, and how its faults are found. */
export const rules = {
  listed: { demand: "every public module of the core has a place in the order", faults: listed },
  order: { demand: "a public module imports only internal modules and earlier public modules", faults: ordered },
  // Bridges and mcp share code of adapters, and cluster of durable. Server builds on durable and ui, mcp on durable,
  // server and ui, and command on durable, server and sql.
  outward: {
    demand: "a folder beside the core is imported only by itself and by the folders that build on it or share its code",
    faults: outward
  },
  bundled: {
    demand: "studio imports only types of public modules of the core, and no effect, because it runs in a browser",
    faults: bundled
  },
  pages: {
    demand:
      "ui imports only the internal modules for JSON, option kinds, call names, text pieces, the teller and public events",
    faults: paged
  },
  circles: { demand: "no file imports itself through other files, not even for a type", faults: circular },
  rooms: {
    demand: "an internal module lies in a room, and imports only from its own room and earlier rooms",
    faults: housed
  },
  sessions: { demand: "a module of the room session imports only earlier modules of that room", faults: built },
  surface: {
    demand: "no file outside the core imports the room session, except in testing: Session and Journal are its surface",
    faults: surfaced
  },
  names: { demand: "an internal module has the same name in every namespace import", faults: named },
  barrel: { demand: "no file imports an index file", faults: barrels },
  index: {
    demand: "an index re-exports each module of its folder as a namespace, or its single function",
    faults: indexes
  },
  stable: {
    demand: "the core and ui import only effect modules marked stable, by their own paths",
    faults: stableOnly
  },
  // Studio bundles its packages. Command, testing and Server import Node's modules, sql node:sqlite, mcp the client of
  // MCP, and outputRule the parser of partial JSON.
  packages: {
    demand: "a file imports no package other than effect, except the packages that its folder is allowed to import",
    faults: packages
  },
  runtime: {
    demand:
      `only command and studio use async, await, Date, Math.random or timers (except ${timers}): Effect replaces them`,
    faults: runtime
  },
  nodeless: {
    demand: "only command, sql and testing use process, require or Buffer, so that other folders run anywhere",
    faults: nodeless
  },
  header: { demand: "a file opens with a comment that states its purpose", faults: header }
} as const satisfies {
  readonly [name: string]: {
    readonly demand: string
    readonly faults: (file: File, circles: Circles, names: Names) => ReadonlyArray<Fault>
  }
}

export type Rule = keyof typeof rules

/** The names of all rules. */
export const ruleNames = Object.keys(rules) as ReadonlyArray<Rule>

const inspect = (source: SourceText, stable: ReadonlySet<string>): File => {
  const { comments, errors, module, program } = parseSync(source.path, source.text, { sourceType: "module" })
  if (errors.length > 0) throw new Error(`${source.path} does not parse: ${errors[0]!.message}`)
  const body = program as unknown as Node
  return {
    path: source.path,
    area: areaOf(source.path),
    text: source.text,
    body,
    imports: importsOf(source.path, module.staticImports, module.staticExports, body),
    opensWithComment: comments[0]?.start === 0,
    stable
  }
}

/** For each file the others that it reaches by imports and that reach it. */
const circlesOf = (files: ReadonlyArray<File>): Circles => {
  const imports = new Map(
    files.map((file) => [file.path, new Set(file.imports.flatMap(({ target }) => target ?? []))] as const)
  )
  const reachedBy = (start: string): ReadonlySet<string> => {
    const reached = new Set(imports.get(start))
    // A set is also walked over what is added on the way.
    for (const path of reached) for (const next of imports.get(path) ?? []) reached.add(next)
    return reached
  }
  const reached = new Map(files.map(({ path }) => [path, reachedBy(path)] as const))
  return new Map(
    files.map(({ path }) => [
      path,
      new Set(Array.from(reached.get(path) ?? []).filter((other) => reached.get(other)?.has(path) === true))
    ])
  )
}

const importsIn = (file: File, area: Area) =>
  file.imports.flatMap((item) =>
    item.target !== undefined && areaOf(item.target) === area ? [{ ...item, name: moduleName(item.target) }] : []
  )

const globalName = (
  node: Node,
  parent: Node | undefined,
  forbidden: ReadonlySet<string> = forbiddenGlobals
): string | undefined => {
  if (node.type === "MemberExpression") {
    const object = node.object as Node
    const property = node.property as Node
    const name = String(node.computed === true ? property.value : property.name)
    if (object.name === "Math" && name === "random") return "Math.random"
    return isGlobalThis(object) && forbidden.has(name) ? name : undefined
  }
  if (node.type !== "Identifier" || !forbidden.has(String(node.name))) return undefined
  return isPropertyName(node, parent) ? undefined : String(node.name)
}

// Also with another type, as in `(globalThis as Other).name`.
const isGlobalThis = (node: Node): boolean =>
  node.name === "globalThis" || (isNode(node.expression) && isGlobalThis(node.expression))

// `Schema.Date`, `{ Date: 1 }` and `readonly Date: string` name a property, not the global.
const isPropertyName = (node: Node, parent: Node | undefined): boolean => {
  if (parent === undefined || parent.computed === true) return false
  if (parent.type === "TSQualifiedName") return parent.right === node
  return parent.property === node || parent.key === node
}

const importsOf = (
  path: string,
  imports: ReadonlyArray<StaticImport>,
  exports: ReadonlyArray<StaticExport>,
  body: Node
): ReadonlyArray<Import> => {
  const found: Array<Import> = []
  const add = (specifier: string, isType: boolean, offset: number, alias?: string) => {
    const target = specifier.startsWith(".") ? new URL(specifier, `file:///${path}`).pathname.slice(1) : undefined
    found.push({ specifier, target, isType, alias, offset })
  }
  for (const { entries, moduleRequest, start } of imports) {
    const whole = entries.find(({ importName }) => importName.kind === "NamespaceObject")
    add(
      moduleRequest.value,
      entries.length > 0 && entries.every((entry) => entry.isType),
      start,
      whole?.localName.value
    )
  }
  for (const { isType, moduleRequest, start } of exports.flatMap((statement) => statement.entries)) {
    if (moduleRequest !== null) add(moduleRequest.value, isType, start)
  }
  walk(body, (node) => {
    if (node.type !== "TSImportType" && node.type !== "ImportExpression") return
    add(String((node.source as Node).value), node.type === "TSImportType", node.start)
  })
  return found
}

const areaOf = (path: string): Area => {
  const folder =
    /^src\/(adapters|bridges|cluster|command|durable|mcp|server|sql|studio|telemetry|testing|ui|internal)\//.exec(
      path
    )?.[1]
  if (folder !== undefined) return folder as Area
  return isIndex(path) ? "index" : "core"
}

const isIndex = (path: string): boolean => path.endsWith("/index.ts")

const isEffect = (specifier: string): boolean => specifier === "effect" || specifier.startsWith("effect/")

const moduleName = (path: string): string => path.slice(path.lastIndexOf("/") + 1).replace(/\.ts$/, "")
