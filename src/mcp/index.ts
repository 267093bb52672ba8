/** Model Context Protocol: tools of MCP servers in runs, and Heddle's tools and agents for MCP clients. */
export * as McpServer from "./McpServer.ts"
export * as McpTools from "./McpTools.ts"
