#!/usr/bin/env bash
# Checks what no compiler sees: workflows, wheels' settings, the Dockerfile, manifests. `make lint-deploy` calls it with the
# folder of the tools: deploy/lint.sh build/deploy/bin
set -euo pipefail
cd "$(dirname "$0")/.."
PATH="$PWD/$1:$PATH"

yamllint --strict --config-file deploy/yamllint.yml .github deploy/kubernetes deploy/compose
actionlint .github/workflows/*.yml
zizmor --quiet --offline .github
check-jsonschema --quiet --builtin-schema vendor.dependabot .github/dependabot.yml
check-jsonschema --quiet --builtin-schema vendor.compose-spec deploy/compose/compose.yaml
hadolint deploy/docker/Dockerfile

for platform in "linux x86_64,aarch64" "macos arm64"; do
    read -r system archs <<<"$platform"
    cibuildwheel --print-build-identifiers --platform "$system" --archs "$archs" >/dev/null
done

rendered=$(mktemp) whole=build/kustomized
trap 'rm -rf "$rendered" "$whole"' EXIT
# The base with every component, which no overlay has.
mkdir -p "$whole"
{
    echo "resources: [../../deploy/kubernetes/base]"
    echo "components:"
    printf -- '- ../../%s\n' deploy/kubernetes/components/*
} >"$whole/kustomization.yaml"
for folder in deploy/kubernetes/base deploy/kubernetes/overlays/* "$whole"; do
    kubectl kustomize "$folder" >"$rendered"
    # The oldest that knows all that is used, and the newest. Of the Prometheus operator's kinds and of the Gateway
    # API's it has no schema.
    for version in 1.30 1.37; do
        kubernetes-validate --strict --quiet --no-warn --kubernetes-version "$version" "$rendered"
    done
done
echo "deploy: all checks passed"
