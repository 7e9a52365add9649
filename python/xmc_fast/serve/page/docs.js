// Swagger UI on this server's own description of its API.
SwaggerUIBundle({ url: "openapi.json", dom_id: "#swagger", deepLinking: true });
