/**
 * The Model Context Protocol: Heddle's tools and agents for its clients.
 */
export * as McpServer from "./McpServer.ts"
