/**
 * The Model Context Protocol: tools of MCP servers in runs.
 */
export * as McpTools from "./McpTools.ts"
